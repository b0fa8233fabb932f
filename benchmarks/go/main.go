// Stock nats.go as a load generator: `publish` awaits acks of js.PublishAsync, `consume` reads a JetStream stream by
// an ordered consumer. Each prints one JSON line. Run by nats_go.py.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	url := flag.String("url", "nats://127.0.0.1:4222", "nats-server")
	subject := flag.String("subject", "bench.0", "subject to publish to")
	stream := flag.String("stream", "bench", "stream to consume")
	size := flag.Int("size", 100, "bytes of a value")
	count := flag.Int("count", 1000, "messages")
	window := flag.Int("window", 4096, "unacknowledged messages at most")
	flag.Parse()

	connection, err := nats.Connect(*url)
	check(err)
	defer connection.Close()
	var found map[string]any
	switch flag.Arg(0) {
	case "publish":
		found = publish(connection, *subject, *size, *count, *window)
	case "consume":
		found = consume(connection, *stream, *count)
	default:
		check(fmt.Errorf("publish or consume, not %q", flag.Arg(0)))
	}
	line, err := json.Marshal(found)
	check(err)
	fmt.Println(string(line))
}

func publish(connection *nats.Conn, subject string, size, count, window int) map[string]any {
	failed := 0
	js, err := connection.JetStream(
		nats.PublishAsyncMaxPending(window),
		nats.PublishAsyncErrHandler(func(nats.JetStream, *nats.Msg, error) { failed++ }),
	)
	check(err)
	value := make([]byte, size)
	for i := range value {
		value[i] = byte('a' + i%26)
	}
	started := time.Now()
	for i := 0; i < count; i++ {
		_, err := js.PublishAsync(subject, value)
		check(err)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(60 * time.Second):
		check(fmt.Errorf("%d acks still missing after 60 s", js.PublishAsyncPending()))
	}
	seconds := time.Since(started).Seconds()
	return map[string]any{
		"rate": float64(count-failed) / seconds, "acked": count - failed, "failed": failed, "seconds": seconds,
	}
}

func consume(connection *nats.Conn, stream string, count int) map[string]any {
	js, err := jetstream.New(connection)
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	consumer, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	check(err)
	messages, err := consumer.Messages(jetstream.PullMaxMessages(10000))
	check(err)
	defer messages.Stop()
	bytes := 0
	started := time.Now()
	for i := 0; i < count; i++ {
		message, err := messages.Next()
		check(err)
		bytes += len(message.Data())
	}
	seconds := time.Since(started).Seconds()
	return map[string]any{"rate": float64(count) / seconds, "value_bytes": bytes, "seconds": seconds}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
