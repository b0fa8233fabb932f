// Makes an envelope and reads an ack as a program with go-liftbridge does on NATS: test_envelopes.py runs it.
package main

import (
	"encoding/hex"
	"fmt"
	"os"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
)

func main() {
	if os.Args[1] == "make" {
		policy := map[string]lift.MessageOption{
			"leader": lift.AckPolicyLeader(), "all": lift.AckPolicyAll(), "none": lift.AckPolicyNone(),
		}[os.Args[2]]
		data := lift.NewMessage([]byte("value"), lift.Key([]byte("key")), lift.Header("h", []byte("1")),
			lift.AckInbox(os.Args[3]), lift.CorrelationID("c-1"), policy)
		fmt.Print(hex.EncodeToString(data))
		return
	}
	data, err := hex.DecodeString(os.Args[2])
	if err != nil {
		panic(err)
	}
	ack, err := lift.UnmarshalAck(data)
	if err != nil {
		panic(err)
	}
	recent := ack.ReceptionTimestamp().Year() > 2020 && !ack.CommitTimestamp().Before(ack.ReceptionTimestamp())
	fmt.Print(ack.Stream(), " ", ack.PartitionSubject(), " ", ack.MessageSubject(), " ", ack.Offset(), " ",
		ack.AckInbox(), " ", ack.CorrelationID(), " ", ack.AckPolicy(), " ", recent)
}
