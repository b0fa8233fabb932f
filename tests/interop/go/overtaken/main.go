// A consumer of a group with go-liftbridge, which says what its handler is given: test_overtaken.py runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
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
	address, name := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	check(err, "count")
	client, err := lift.Connect([]string{address})
	check(err, "connect")
	defer client.Close()
	consumer, err := client.CreateConsumer("group-"+name, lift.AutoOffsetEarliest(), lift.AutoCheckpoint(100*time.Millisecond),
		lift.FetchAssignmentsInterval(func(time.Duration) time.Duration { return 200 * time.Millisecond }))
	check(err, "consumer")
	said := make(chan string, 1000)
	ctx, cancel := context.WithTimeout(context.Background(), 120*time.Second)
	defer cancel()
	check(consumer.Subscribe(ctx, []string{name}, func(message *lift.Message, err error) {
		if err != nil {
			said <- fmt.Sprint("error ", err)
		} else {
			said <- fmt.Sprint("record ", message.Offset())
		}
	}), "subscribe")
	for i := 0; i < count; i++ {
		select {
		case line := <-said:
			fmt.Println(line)
		case <-ctx.Done():
			check(ctx.Err(), "waiting")
		}
	}
	check(consumer.Close(), "close")
}
