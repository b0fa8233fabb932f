// Two consumers of a group with go-liftbridge, of which one comes later and leaves: test_clients.py runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
)

const partitions = 4

func check(err error, what string) {
	if err != nil {
		fmt.Println("FAILED", what, err)
		os.Exit(1)
	}
}

// What has come: how often each record, and how many to each consumer.
type seen struct {
	sync.Mutex
	records map[string]int
	of      map[string]int
	errors  []error
}

func (s *seen) handler(name string) lift.Handler {
	return func(message *lift.Message, err error) {
		s.Lock()
		defer s.Unlock()
		if err != nil {
			s.errors = append(s.errors, err)
			return
		}
		s.records[fmt.Sprintf("%d/%d", message.Partition(), message.Offset())]++
		s.of[name]++
	}
}

func (s *seen) count() (int, map[string]int) {
	s.Lock()
	defer s.Unlock()
	of := map[string]int{}
	for name, count := range s.of {
		of[name] = count
	}
	return len(s.records), of
}

func eventually(what string, holds func() bool) {
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return
		}
	}
	fmt.Println("FAILED: never", what)
	os.Exit(1)
}

func consumer(address, group, name string) (lift.Client, *lift.Consumer) {
	client, err := lift.Connect([]string{address})
	check(err, "connect")
	made, err := client.CreateConsumer(group, lift.ConsumerID(name), lift.AutoOffsetEarliest(), lift.AutoCheckpoint(100*time.Millisecond),
		lift.FetchAssignmentsInterval(func(time.Duration) time.Duration { return 200 * time.Millisecond }))
	check(err, "consumer")
	return client, made
}

// Leave the group. A Close of go-liftbridge 2.3.0 never returns if its consumer was asking for its share just then: that
// ends with the call's context, and is asked again at once, for ever. It has left by then.
func left(consumer *lift.Consumer, name string) {
	done := make(chan error, 1)
	go func() { done <- consumer.Close() }()
	select {
	case err := <-done:
		check(err, "close "+name)
	case <-time.After(20 * time.Second):
	}
}

func main() {
	address, name := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 180*time.Second)
	defer cancel()
	client, err := lift.Connect([]string{address})
	check(err, "connect")
	defer client.Close()
	check(client.CreateStream(ctx, name+".subject", name, lift.Partitions(partitions), lift.MaxReplication()), "create")
	total := 0
	publish := func(count int) {
		for i := 0; i < count; i++ {
			_, err := client.Publish(ctx, name, []byte("v"), lift.ToPartition(int32(total%partitions)), lift.AckPolicyAll())
			check(err, "publish")
			total++
		}
	}
	all := &seen{records: map[string]int{}, of: map[string]int{}}
	firstClient, first := consumer(address, "group-"+name, "first")
	defer firstClient.Close()
	secondClient, second := consumer(address, "group-"+name, "second")
	defer secondClient.Close()
	publish(40)
	check(first.Subscribe(ctx, []string{name}, all.handler("first")), "subscribe first")
	eventually("all by one", func() bool { found, _ := all.count(); return found == total })
	check(second.Subscribe(ctx, []string{name}, all.handler("second")), "subscribe second")
	eventually("a part for the second", func() bool {
		publish(4)
		_, of := all.count()
		return of["second"] >= 20
	})
	eventually("all by two", func() bool { found, _ := all.count(); return found == total })
	left(second, "second")
	_, before := all.count()
	publish(40)
	eventually("all by the one that stays", func() bool { found, _ := all.count(); return found == total })
	_, after := all.count()
	if after["second"] != before["second"] {
		fmt.Println("FAILED: records to who has left", before, after)
		os.Exit(1)
	}
	time.Sleep(300 * time.Millisecond) // a checkpoint of the last ones
	left(first, "first")
	for number := int32(0); number < partitions; number++ {
		at, err := client.FetchCursor(ctx, "__group:group-"+name, name, number)
		check(err, "cursor")
		if at != int64(total/partitions)-1 {
			fmt.Println("FAILED cursor", number, at, total)
			os.Exit(1)
		}
	}
	all.Lock()
	defer all.Unlock()
	twice := 0
	for _, times := range all.records {
		twice += times - 1
	}
	if len(all.errors) > 0 {
		fmt.Println("FAILED errors", all.errors)
		os.Exit(1)
	}
	fmt.Println("OK ", total, "records,", twice, "again")
}
