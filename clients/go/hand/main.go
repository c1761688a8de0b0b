// A hand in Go, as small as a whole one can be: it dials out, is sent calls, runs them and says what came of them. It has one
// tool, `run`, which runs a command. docs/wire.md explains each step.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "handmesh/clients/stubs/handmesh/sandbox/v1"
)

const (
	pause     = 200 * time.Millisecond // before it connects, or says something, again
	maxOutput = 1 << 20                // bytes that are kept of what a call prints; the server cuts out the middle of less
)

var tools = []*pb.Tool{{
	Name:            "run",
	Description:     "Runs a command with sh, in a directory of its own, and returns what it prints.",
	InputSchemaJson: `{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}`,
}}

// hand is one worker, over all its links. executions are its calls until their results were acknowledged.
type hand struct {
	client     pb.SandboxServiceClient
	ctx        context.Context // carries the token
	name, root string
	worker     string // this process

	mutex      sync.Mutex
	executions map[string]*execution
}

type execution struct {
	sandbox string
	ctx     context.Context
	cancel  context.CancelFunc
}

func main() {
	address := flag.String("connect", "127.0.0.1:7403", "host:port of the sandbox service")
	name := flag.String("name", "", "the hand's name, which its token is for")
	tokenFile := flag.String("token-file", "", "file with the hand's token")
	caFile := flag.String("ca", "", "PEM file of the authority to trust; without, plain text, which a mesh speaks on its own machine")
	root := flag.String("root", ".", "directory in which commands run, a directory for each sandbox")
	flag.Parse()
	token, err := os.ReadFile(*tokenFile)
	fatal(err)
	link := insecure.NewCredentials()
	if *caFile != "" {
		link, err = credentials.NewClientTLSFromFile(*caFile, "")
		fatal(err)
	}
	again := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: pause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second}}
	channel, err := grpc.NewClient(*address, grpc.WithTransportCredentials(link), grpc.WithConnectParams(again))
	fatal(err)
	ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+strings.TrimSpace(string(token)))
	h := &hand{pb.NewSandboxServiceClient(channel), ctx, *name, *root, "go-" + rand.Text(), sync.Mutex{}, map[string]*execution{}}
	for {
		err := h.link()
		log.Printf("the link ended: %v", err)
		switch reasonOf(err) {
		case "GRANT_INVALID", "HAND_NAME_DENIED", "HAND_REGISTRATION_INVALID", "WORKER_REPLACED":
			os.Exit(1) // to connect again would change nothing
		}
		time.Sleep(pause)
	}
}

// link registers the worker and does what it is sent, until the stream ends or nothing was heard for a lease.
func (h *hand) link() error {
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	hello := &pb.ConnectHandRequest{Name: h.name, Tools: tools, Capacity: 4, Worker: h.worker, Executions: h.held()}
	stream, err := h.client.ConnectHand(ctx, hello)
	if err != nil {
		return err
	}
	lease := time.Minute // until the server has named it
	silence := time.AfterFunc(lease, cancel)
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		switch work := message.GetWork().(type) {
		case *pb.ConnectHandResponse_Accepted:
			lease = work.Accepted.GetLease().AsDuration()
			h.resume(work.Accepted.GetExecutions())
			go h.live(ctx, lease/3)
		case *pb.ConnectHandResponse_Execute:
			h.begin(work.Execute.GetSandboxId(), work.Execute.GetExecutionId(), work.Execute)
		case *pb.ConnectHandResponse_Cancel: // one that is not known never starts
			h.begin(work.Cancel.GetSandboxId(), work.Cancel.GetExecutionId(), nil).cancel()
		case *pb.ConnectHandResponse_Release:
			sandbox := work.Release.GetSandboxId()
			h.forget(func(_ string, it *execution) bool { return it.sandbox == sandbox })
			os.RemoveAll(h.directory(sandbox))
		case *pb.ConnectHandResponse_Drain:
			return errors.New("the server goes away") // what runs goes on, and is told over the next link
		}
		silence.Reset(lease)
	}
}

// live gives a sign of life at every tick, for as long as the link stands.
func (h *hand) live(ctx context.Context, every time.Duration) {
	for ticker := time.NewTicker(every); ctx.Err() == nil; <-ticker.C {
		h.client.ReportExecution(ctx, &pb.ReportExecutionRequest{Worker: h.worker}) // a link that is down ends by itself
	}
}

// held names what the worker has: all that it has begun and whose results were not acknowledged.
func (h *hand) held() (held []*pb.HeldExecution) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for id, it := range h.executions {
		held = append(held, &pb.HeldExecution{SandboxId: it.sandbox, ExecutionId: id})
	}
	return held
}

// resume goes on with what is still wanted after a broken link, and forgets the rest.
func (h *hand) resume(wanted []*pb.WantedExecution) {
	cancelled := map[string]bool{}
	for _, it := range wanted {
		cancelled[it.GetExecutionId()] = it.GetCancelled()
	}
	h.forget(func(id string, it *execution) bool {
		if cancelled[id] {
			it.cancel()
		}
		_, known := cancelled[id]
		return !known
	})
}

// forget ends and forgets what is not wanted any more.
func (h *hand) forget(unwanted func(string, *execution) bool) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for id, it := range h.executions {
		if unwanted(id, it) {
			it.cancel()
			delete(h.executions, id)
		}
	}
}

// begin runs a call, unless it is known already: a call runs once, however often it is sent. Without a request it only keeps
// in mind that the call must not run.
func (h *hand) begin(sandbox, id string, request *pb.ExecuteRequest) *execution {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if known := h.executions[id]; known != nil {
		return known
	}
	it := &execution{sandbox: sandbox}
	if it.ctx, it.cancel = context.WithCancel(h.ctx); request != nil {
		it.ctx, it.cancel = context.WithTimeout(h.ctx, request.GetTimeout().AsDuration())
	}
	h.executions[id] = it
	go func() {
		defer it.cancel()
		if request == nil {
			h.report(id, it, result("[cancelled before it began]", pb.ToolOutcome_TOOL_OUTCOME_INTERRUPTED))
			return
		}
		h.report(id, it, h.run(it, request))
	}()
	return it
}

// report says what came of a call until that is acknowledged, whatever happens to the link meanwhile.
func (h *hand) report(id string, it *execution, result *pb.ToolResult) {
	said := &pb.ReportExecutionRequest{Worker: h.worker, SandboxId: &it.sandbox, ExecutionId: id, Result: result}
	for h.keeps(id, it) {
		_, err := h.client.ReportExecution(h.ctx, said)
		switch reasonOf(err) {
		case "", "EXECUTION_UNKNOWN", "REPORT_CONTRADICTS", "REPORT_INVALID": // acknowledged, or wanted by nobody
			h.forget(func(_ string, each *execution) bool { return each == it })
		default:
			time.Sleep(pause) // the link is down
		}
	}
}

func (h *hand) keeps(id string, it *execution) bool {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.executions[id] == it
}

// run does the work: a command and all that it starts, in the sandbox's directory, until it ends, is cancelled or out of time.
func (h *hand) run(it *execution, request *pb.ExecuteRequest) *pb.ToolResult {
	var input struct{ Command string }
	if err := json.Unmarshal([]byte(request.GetInput()), &input); err != nil || request.GetName() != "run" {
		return result("this hand has one tool: run, with a command", pb.ToolOutcome_TOOL_OUTCOME_TOOL_ERROR)
	}
	os.MkdirAll(h.directory(it.sandbox), 0o700) // where it cannot be made, the command says so
	command := exec.CommandContext(it.ctx, "sh", "-c", input.Command)
	command.Dir = h.directory(it.sandbox)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = time.Second // for what a process that got away still holds open
	var printed output
	command.Stdout, command.Stderr = &printed, &printed
	err := command.Run()
	switch output := printed.String(); {
	case errors.Is(it.ctx.Err(), context.Canceled):
		return result(output+"[interrupted]", pb.ToolOutcome_TOOL_OUTCOME_INTERRUPTED)
	case it.ctx.Err() != nil:
		return result(output+"[out of time]", pb.ToolOutcome_TOOL_OUTCOME_TIMEOUT)
	case err != nil: // `exit status 7`, among others
		return result(output+"["+err.Error()+"]", pb.ToolOutcome_TOOL_OUTCOME_TOOL_ERROR)
	default:
		return result(output, pb.ToolOutcome_TOOL_OUTCOME_OK)
	}
}

// output keeps the first part of what is printed.
type output struct{ bytes.Buffer }

func (it *output) Write(printed []byte) (int, error) {
	it.Buffer.Write(printed[:min(len(printed), maxOutput-it.Len())])
	return len(printed), nil
}

func (h *hand) directory(sandbox string) string { return filepath.Join(h.root, filepath.Base(sandbox)) }

func result(printed string, outcome pb.ToolOutcome) *pb.ToolResult {
	text := strings.TrimRight(strings.ToValidUTF8(printed, "\uFFFD"), "\n")
	if text == "" {
		text = "(no output)"
	}
	return &pb.ToolResult{Output: text, Outcome: outcome}
}

// reasonOf returns why a call was refused, such as WORKER_UNKNOWN; the status's name where no reason came; empty for none.
func reasonOf(err error) string {
	if err == nil {
		return ""
	}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return status.Code(err).String()
}

func fatal(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
