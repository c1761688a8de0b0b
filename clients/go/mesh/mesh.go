// Package mesh is a client of a mesh on the generated stubs.
//
//	mesh, err := mesh.Dial("127.0.0.1:7401", mesh.Options{APIKey: key})
//	session, err := mesh.Create(ctx, &pb.SessionConfig{System: "Be brief."}, "List the files.")
//	for it, err := range session.Watch(ctx, 1, true) { ... }
//
// Read in this order: errors, endurance, cursor, mesh, session.
package mesh

import (
	"context"
	"crypto/rand"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	pb "handmesh/clients/stubs/handmesh/session/v1"
)

const (
	callTime     = 30 * time.Second // for one try of a call
	messageBytes = 8 << 20          // a page of events has up to 3 MiB, and one event more
)

// Options say who calls, whom to trust and how long to go on trying.
type Options struct {
	APIKey   string
	CAFile   string        // PEM; without it plain text to this machine, and TLS with the system's authorities to others
	Patience time.Duration // for which a mesh that is away is tried again; 0 means a minute
}

// Mesh is one mesh: sessions are made and found here. Its methods may be called side by side.
type Mesh struct {
	channel  *grpc.ClientConn
	service  pb.SessionServiceClient
	key      string
	patience time.Duration
}

// Dial returns a client of the mesh whose session service is at host:port. It connects at the first call.
func Dial(address string, options Options) (*Mesh, error) {
	link := credentials.NewTLS(nil)
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if options.CAFile != "" {
		if link, err = credentials.NewClientTLSFromFile(options.CAFile, ""); err != nil {
			return nil, err
		}
	} else if ip := net.ParseIP(host); host == "localhost" || ip.IsLoopback() {
		link = insecure.NewCredentials()
	}
	again := backoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second}
	channel, err := grpc.NewClient(
		address,
		grpc.WithTransportCredentials(link),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}),
	)
	if err != nil {
		return nil, err
	}
	if options.Patience == 0 {
		options.Patience = time.Minute
	}
	return &Mesh{channel, pb.NewSessionServiceClient(channel), options.APIKey, options.Patience}, nil
}

// Close ends what is still running.
func (m *Mesh) Close() error { return m.channel.Close() }

// Create starts a session with its first message.
func (m *Mesh) Create(ctx context.Context, config *pb.SessionConfig, text string) (*Session, error) {
	request := &pb.CreateSessionRequest{
		RequestId:     fresh("create"),
		Config:        config,
		InitialEvents: []*pb.Event{message(text)},
	}
	answer, err := again(ctx, m, m.service.CreateSession, request)
	if err != nil {
		return nil, err
	}
	return m.Session(answer.GetSession().GetSessionId()), nil
}

// Session returns a handle on a session. It asks nobody.
func (m *Mesh) Session(id string) *Session { return &Session{ID: id, mesh: m} }

func (m *Mesh) signed(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+m.key)
}

// again makes a unary call, again while the mesh is away: so the request has to carry an id that makes it idempotent.
func again[Q, A any](
	ctx context.Context, m *Mesh, method func(context.Context, *Q, ...grpc.CallOption) (*A, error), request *Q,
) (*A, error) {
	endurance := newEndurance(m.patience)
	for {
		try, cancel := context.WithTimeout(m.signed(ctx), callTime)
		answer, err := method(try, request)
		cancel()
		if err == nil {
			return answer, nil
		}
		problem := raised(err)
		if ctx.Err() != nil || !problem.broken() {
			return nil, problem
		}
		if err := endurance.wait(ctx, problem); err != nil {
			return nil, err
		}
	}
}

// fresh names an event, or a request, so that it can be said again after a lost answer.
func fresh(what string) string { return what + "-" + rand.Text() }
