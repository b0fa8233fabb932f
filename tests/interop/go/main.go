// What a program with go-liftbridge does, against a broker of this project: test_clients.py runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
)

func check(err error, what string) {
	if err != nil {
		fmt.Println("FAILED", what, err)
		os.Exit(1)
	}
}

func main() {
	client, err := lift.Connect([]string{os.Args[1]})
	check(err, "connect")
	defer client.Close()
	name := os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	check(client.CreateStream(ctx, name+".subject", name, lift.Partitions(2), lift.MaxReplication()), "create")
	if err := client.CreateStream(ctx, name+".subject", name); err != lift.ErrStreamExists {
		fmt.Println("FAILED second create", err)
		os.Exit(1)
	}
	const count = 500
	for i := 0; i < 3; i++ {
		ack, err := client.Publish(ctx, name, []byte(fmt.Sprint(i)), lift.Key([]byte("k")), lift.AckPolicyAll(), lift.Header("h", []byte("x")))
		check(err, "publish")
		if ack.Offset() != int64(i) {
			fmt.Println("FAILED offset", ack.Offset())
			os.Exit(1)
		}
	}
	acked := make(chan error, count)
	for i := 3; i < count; i++ {
		check(client.PublishAsync(ctx, name, []byte(fmt.Sprint(i)), func(ack *lift.Ack, err error) { acked <- err }), "async")
	}
	for i := 3; i < count; i++ {
		check(<-acked, "ack")
	}
	seen := make(chan *lift.Message, count)
	sub, stop := context.WithCancel(ctx)
	check(client.Subscribe(sub, name, func(message *lift.Message, err error) {
		if err == nil {
			seen <- message
		}
	}, lift.StartAtEarliestReceived()), "subscribe")
	for i := 0; i < count; i++ {
		message := <-seen
		if message.Offset() != int64(i) {
			fmt.Println("FAILED order", i, message.Offset())
			os.Exit(1)
		}
	}
	stop()
	check(client.SetCursor(ctx, "cursor-"+name, name, 0, 41), "set cursor")
	at, err := client.FetchCursor(ctx, "cursor-"+name, name, 0)
	check(err, "fetch cursor")
	if at != 41 {
		fmt.Println("FAILED cursor", at)
		os.Exit(1)
	}
	info, err := client.FetchPartitionMetadata(ctx, name, 0)
	check(err, "partition")
	if info.HighWatermark() != count-1 || info.NewestOffset() != count-1 {
		fmt.Println("FAILED ends", info.HighWatermark(), info.NewestOffset())
		os.Exit(1)
	}
	check(client.SetStreamReadonly(ctx, name), "read-only")
	if _, err := client.Publish(ctx, name, []byte("no")); err != lift.ErrReadonlyPartition {
		fmt.Println("FAILED read-only publish", err)
		os.Exit(1)
	}
	check(client.DeleteStream(ctx, name), "delete")
	if err := client.DeleteStream(ctx, name); err == nil {
		fmt.Println("FAILED second delete")
		os.Exit(1)
	}
	fmt.Println("OK", count)
}
