package mesh_test

import (
	"context"
	"fmt"

	"handmesh/clients/mesh"
	pb "handmesh/clients/stubs/handmesh/session/v1"
)

// The quickstart of docs/clients.md. It has no expected output, so it is compiled and not run.
func Example() {
	if err := list(context.Background(), "the API key"); err != nil {
		fmt.Println(err)
	}
}

func list(ctx context.Context, key string) error {
	client, err := mesh.Dial("127.0.0.1:7401", mesh.Options{APIKey: key})
	if err != nil {
		return err
	}
	defer client.Close()
	session, err := client.Create(ctx, &pb.SessionConfig{System: "Be brief."}, "List the files.")
	if err != nil {
		return err
	}
	for told, err := range session.Watch(ctx, 1, true) {
		if err != nil {
			return err
		}
		fmt.Print(told.Preview.GetText())
		if told.Event.GetTurnEnded() != nil {
			return nil
		}
	}
	return nil
}
