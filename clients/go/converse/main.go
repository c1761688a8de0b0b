// Converse gives an agent a task and sees it through: it answers its tool, decides what it asks, and prints all that happens.
//
//	HANDMESH_API_KEY=... converse --address 127.0.0.1:7401 "look into order 7"
//
// The agent has one tool of ours, lookup_order, and has to ask before it runs bash. docs/clients.md explains it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"handmesh/clients/mesh"
	pb "handmesh/clients/stubs/handmesh/session/v1"
)

var config = &pb.SessionConfig{
	Title: "converse",
	CustomTools: []*pb.CustomTool{{
		Name:            "lookup_order",
		Description:     "Tells how an order stands.",
		InputSchemaJson: `{"type":"object","properties":{"order_id":{"type":"string"}},"required":["order_id"]}`,
	}},
	ToolPolicies: []*pb.ToolPolicy{{Pattern: "bash", Action: pb.ToolPolicyAction_TOOL_POLICY_ACTION_ASK}},
}

type options struct {
	address, session, task string
	start                  int64
	deny                   bool
}

func main() {
	var chosen options
	flag.StringVar(&chosen.address, "address", "", "host:port of the session service")
	flag.StringVar(&chosen.session, "session", "", "goes on with this session")
	flag.Int64Var(&chosen.start, "from", 1, "first position to print")
	flag.BoolVar(&chosen.deny, "deny", false, "declines what the agent asks for")
	caFile := flag.String("ca", "", "PEM file of the authority to trust")
	patience := flag.Float64("patience", 60, "seconds for which a mesh that is away is tried")
	flag.Parse()
	chosen.task = flag.Arg(0)
	key := os.Getenv("HANDMESH_API_KEY")
	if key == "" || chosen.address == "" || chosen.task == "" && chosen.session == "" {
		fmt.Fprintln(os.Stderr, "HANDMESH_API_KEY has to be set, and an address, and a task or a session to be given")
		os.Exit(2)
	}
	seconds := time.Duration(*patience * float64(time.Second))
	client, err := mesh.Dial(chosen.address, mesh.Options{APIKey: key, CAFile: *caFile, Patience: seconds})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	defer client.Close()
	if err := converse(context.Background(), client, chosen); err != nil {
		show(line{"error": errorLine(err)})
		os.Exit(1)
	}
}

// converse begins, or goes on, and follows the session until the turn has ended.
func converse(ctx context.Context, client *mesh.Mesh, chosen options) error {
	session, said, err := begin(ctx, client, chosen)
	if err != nil {
		return err
	}
	show(line{"session": session.ID})
	for told, err := range session.Watch(ctx, chosen.start, true) {
		if err != nil {
			return err
		}
		if told.Preview != nil {
			show(previewLine(told.Preview))
			continue
		}
		happened, err := eventLine(told.Event)
		if err != nil {
			return err
		}
		show(happened)
		if err := react(ctx, session, told.Event, !chosen.deny); settled(err) {
			show(line{"refused": errorLine(err)}) // somebody else was first
		} else if err != nil {
			return err
		}
		if told.Event.GetTurnEnded() != nil && told.Event.GetPosition() > said {
			return nil
		}
	}
	return nil
}

func begin(ctx context.Context, client *mesh.Mesh, chosen options) (session *mesh.Session, said int64, err error) {
	if chosen.session == "" {
		session, err = client.Create(ctx, config, chosen.task)
		return session, 0, err
	}
	session = client.Session(chosen.session)
	if chosen.task != "" {
		said, err = session.Send(ctx, chosen.task)
	}
	return session, said, err
}

// react does what an event asks of a client.
func react(ctx context.Context, session *mesh.Session, event *pb.Event, allowed bool) error {
	switch it := event.GetKind().(type) {
	case *pb.Event_CustomToolRequested:
		var input struct {
			OrderID string `json:"order_id"`
		}
		if err := json.Unmarshal([]byte(it.CustomToolRequested.GetInputJson()), &input); err != nil {
			return err
		}
		_, err := session.Answer(ctx, it.CustomToolRequested.GetToolUseId(), "order "+input.OrderID+" is paid")
		return err
	case *pb.Event_ToolConfirmationRequested:
		reason := ""
		if !allowed {
			reason = "Not now."
		}
		_, err := session.Decide(ctx, it.ToolConfirmationRequested, allowed, reason)
		return err
	}
	return nil
}

// settled says whether a call had its answer, or decision, already.
func settled(err error) bool {
	var problem *mesh.Error
	return errors.As(err, &problem) && (problem.Reason == "TOOL_CALL_SETTLED" || problem.Reason == "TOOL_CALL_UNKNOWN")
}

// show prints one line.
func show(it line) {
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.Encode(it)
}
