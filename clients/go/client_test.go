package agentrouting_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	agentrouting "example.com/agent-routing/go"
	v1 "example.com/agent-routing/go/v1"
)

// scripted is a scripted service, which records its requests.
type scripted struct {
	v1.UnimplementedRoutingServiceServer
	mu       sync.Mutex
	requests []*v1.RouteRequest
	tokens   []string
	route    func(ctx context.Context, attempt int) (*v1.RouteResponse, error)
	watch    func(*v1.WatchSessionRequest, grpc.ServerStreamingServer[v1.WatchSessionResponse]) error
	together int // answers in one message of a stream, for clients that take more
}

func (s *scripted) Route(ctx context.Context, request *v1.RouteRequest) (*v1.RouteResponse, error) {
	s.mu.Lock()
	s.requests = append(s.requests, request)
	attempt := len(s.requests)
	found, _ := metadata.FromIncomingContext(ctx)
	s.tokens = append(s.tokens, strings.Join(found["authorization"], ","))
	s.mu.Unlock()
	if s.route != nil {
		answer, err := s.route(ctx, attempt)
		if answer != nil || err != nil {
			return answer, err
		}
	}
	return echo(request), nil
}

func (s *scripted) RouteStream(stream grpc.BidiStreamingServer[v1.RouteStreamRequest, v1.RouteStreamResponse]) error {
	var held []*v1.RouteStreamResponse
	for {
		message, err := stream.Recv()
		if err != nil {
			return nil
		}
		request := message.GetRoute()
		answer := &v1.RouteStreamResponse{RequestId: request.GetRequestId(), SessionId: request.GetSessionId()}
		response, err := s.Route(stream.Context(), request)
		if status.Code(err) == codes.Aborted {
			return err
		}
		answer.Result = &v1.RouteStreamResponse_Route{Route: response}
		if err != nil {
			answer.Result = &v1.RouteStreamResponse_Error{Error: status.Convert(err).Proto()}
		}
		held = append(held, answer)
		if message.GetTakesMore() && len(held) < s.together {
			continue
		}
		held[0].More = held[1:]
		if stream.Send(held[0]) != nil {
			return nil
		}
		held = nil
	}
}

func (s *scripted) WatchSession(request *v1.WatchSessionRequest, stream grpc.ServerStreamingServer[v1.WatchSessionResponse]) error {
	return s.watch(request, stream)
}

func (s *scripted) asked() []*v1.RouteRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*v1.RouteRequest(nil), s.requests...)
}

func echo(request *v1.RouteRequest) *v1.RouteResponse {
	return &v1.RouteResponse{
		SessionId: request.GetSessionId(), RequestId: request.GetRequestId(), Revision: 1,
		Dispatch: &v1.Dispatch{Agent: &v1.Agent{AgentId: "billing"}, Text: request.GetText()},
	}
}

func serve(t *testing.T, service *scripted, options ...grpc.ServerOption) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	v1.RegisterRoutingServiceServer(server, service)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

func open(t *testing.T, address string, options ...agentrouting.Option) *agentrouting.Client {
	t.Helper()
	quick := agentrouting.RetryPolicy{AttemptsMax: 4, BackoffFirst: time.Millisecond, BackoffMax: time.Millisecond}
	options = append([]agentrouting.Option{
		agentrouting.WithRetry(quick), agentrouting.WithTimeout(stepTimeout),
	}, options...)
	client, err := agentrouting.NewClient(address, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func refusal(code codes.Code, reason agentrouting.Reason, values map[string]string, more ...protoadapt.MessageV1) error {
	info := &errdetails.ErrorInfo{Reason: string(reason), Domain: "agent_routing", Metadata: values}
	made, err := status.New(code, "no").WithDetails(append([]protoadapt.MessageV1{info}, more...)...)
	if err != nil {
		panic(err)
	}
	return made.Err()
}

func TestARepeatIsTheSameRequest(t *testing.T) {
	service := &scripted{route: func(_ context.Context, attempt int) (*v1.RouteResponse, error) {
		if attempt < 4 {
			return nil, refusal(codes.Unavailable, agentrouting.StoreUnavailable, nil,
				&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Millisecond)})
		}
		return nil, nil
	}}
	var info agentrouting.CallInfo
	turn, err := open(t, serve(t, service)).Route(t.Context(), &v1.RouteRequest{Text: "hello"}, agentrouting.WithInfo(&info))
	if err != nil || turn.Degraded || info.Attempts != 4 {
		t.Fatal(turn, err, info)
	}
	asked := service.asked()
	for _, each := range asked {
		if each.GetRequestId() != asked[0].GetRequestId() || each.GetSessionId() != asked[0].GetSessionId() || each.GetRequestId() == "" {
			t.Error("another request:", each)
		}
	}
}

func TestTheCallersRequestIsNotTouched(t *testing.T) {
	request := &v1.RouteRequest{Text: "hello"}
	client := open(t, serve(t, &scripted{}))
	first, err := client.Route(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	second, err := client.Route(t.Context(), request)
	if err != nil || request.GetRequestId() != "" || first.GetRequestId() == second.GetRequestId() {
		t.Error(request, first, second, err)
	}
}

func TestACallRefusedUnreadIsSentAgain(t *testing.T) {
	service := &scripted{route: func(_ context.Context, attempt int) (*v1.RouteResponse, error) {
		if attempt == 1 {
			return nil, status.Error(codes.Canceled, "RST_STREAM")
		}
		return nil, nil
	}}
	turn, err := open(t, serve(t, service)).Route(t.Context(), &v1.RouteRequest{Text: "hello"})
	if err != nil || turn.Degraded || len(service.asked()) != 2 {
		t.Error(turn, err, len(service.asked()))
	}
}

func TestACallWhoseStreamEndedWithoutAStatusIsSentAgain(t *testing.T) {
	// As grpc-go says it of a proxy whose server was killed.
	for _, words := range []string{"server closed the stream without sending trailers", "stream terminated by RST_STREAM with error code: INTERNAL_ERROR"} {
		service := &scripted{route: func(_ context.Context, attempt int) (*v1.RouteResponse, error) {
			if attempt == 1 {
				return nil, status.Error(codes.Internal, words)
			}
			return nil, nil
		}}
		turn, err := open(t, serve(t, service)).Route(t.Context(), &v1.RouteRequest{Text: "hello"})
		if err != nil || turn.Degraded || len(service.asked()) != 2 {
			t.Error(words, turn, err, len(service.asked()))
		}
	}
}

func TestAnOverloadWithItsReasonIsAnAnswer(t *testing.T) {
	service := &scripted{route: func(context.Context, int) (*v1.RouteResponse, error) {
		return nil, refusal(codes.ResourceExhausted, agentrouting.Overloaded, nil, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
	}}
	_, err := open(t, serve(t, service), agentrouting.WithoutFallback()).Route(t.Context(), &v1.RouteRequest{Text: "hello"})
	var failure *agentrouting.RoutingError
	if !errors.Is(err, agentrouting.Overloaded) || !errors.As(err, &failure) || failure.RetryAfter != time.Second || len(service.asked()) != 1 {
		t.Error(err, len(service.asked()))
	}
}

func TestErrorsAreOfTheTypeOfTheirReason(t *testing.T) {
	service := &scripted{route: func(context.Context, int) (*v1.RouteResponse, error) {
		return nil, refusal(codes.Aborted, agentrouting.RevisionMismatch, map[string]string{"revision": "18", "expected_revision": "17"})
	}}
	_, err := open(t, serve(t, service)).Route(t.Context(), &v1.RouteRequest{Text: "hello"})
	err = fmt.Errorf("wrapped: %w", err)
	var mismatch *agentrouting.RevisionMismatchError
	var refused *agentrouting.HandoffRefusedError
	if !errors.As(err, &mismatch) || errors.As(err, &refused) {
		t.Fatal(err)
	}
	actual, _ := mismatch.Actual()
	expected, _ := mismatch.Expected()
	if actual != 18 || expected != 17 || mismatch.Code != codes.Aborted || status.Code(err) != codes.Aborted {
		t.Error(mismatch, status.Code(err))
	}
	if errors.Is(err, agentrouting.HandoffRefused) || errors.Is(err, agentrouting.Reason("")) {
		t.Error("is not", err)
	}
}

func TestADeadlineThatPassesFallsBackAndACancellationDoesNot(t *testing.T) {
	service := &scripted{route: func(ctx context.Context, attempt int) (*v1.RouteResponse, error) {
		if attempt > 1 {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, nil
	}}
	var log bytes.Buffer
	client := open(t, serve(t, service), agentrouting.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	request := &v1.RouteRequest{SessionId: "chat-1", Text: "do not log this"}
	if _, err := client.Route(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	turn, err := client.Route(short, request)
	if err != nil || !turn.Degraded || turn.AgentID() != "billing" || !errors.Is(turn.Err, context.DeadlineExceeded) {
		t.Error(turn, err)
	}
	if said := log.String(); !strings.Contains(said, "route_degraded") || strings.Contains(said, "do not log this") {
		t.Error(said)
	}
	given, giveUp := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, giveUp)
	turn, err = client.Route(given, request)
	if turn != nil || !errors.Is(err, context.Canceled) {
		t.Error(turn, err)
	}
}

func TestAnOutageEndsTheRepeatsOfAllCalls(t *testing.T) {
	service := &scripted{route: func(context.Context, int) (*v1.RouteResponse, error) {
		return nil, status.Error(codes.Unavailable, "away")
	}}
	client := open(t, serve(t, service), agentrouting.WithoutFallback())
	for range 30 {
		if _, err := client.Route(t.Context(), &v1.RouteRequest{Text: "hello"}); status.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
	}
	// 16 calls of three repeats each until half of the tokens are gone, then one attempt a call.
	if count := len(service.asked()); count < 50 || count > 70 {
		t.Error(count, "attempts of 30 calls")
	}
}

func TestReplicasThatCannotServeKeepTheReason(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service, away := &scripted{}, health.NewServer()
	away.SetServingStatus(v1.RoutingService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_NOT_SERVING)
	server := grpc.NewServer()
	v1.RegisterRoutingServiceServer(server, service)
	healthpb.RegisterHealthServer(server, away)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	client := open(t, "dns:///"+listener.Addr().String(), agentrouting.WithoutFallback())
	_, err = client.Route(t.Context(), &v1.RouteRequest{Text: "hello"})
	var found *agentrouting.RoutingError
	if !errors.As(err, &found) || !errors.Is(err, agentrouting.StoreUnavailable) {
		t.Fatal(err)
	}
	if found.RetryAfter != 250*time.Millisecond || !strings.Contains(found.Message, "same request_id") {
		t.Error(found.RetryAfter, found.Message)
	}
	if len(service.asked()) > 0 {
		t.Error("a replica that cannot serve was asked")
	}
}

func TestSessionsAreForgottenFromTheOldest(t *testing.T) {
	service := &scripted{}
	address := serve(t, service)
	client := open(t, address, agentrouting.WithFallback(agentrouting.Fallback{SupervisorID: "chief", SessionsMax: 2}))
	for _, session := range []string{"a", "b", "a", "c"} {
		if _, err := client.Route(t.Context(), &v1.RouteRequest{SessionId: session, Text: "hello"}); err != nil {
			t.Fatal(err)
		}
	}
	service.mu.Lock()
	service.route = func(context.Context, int) (*v1.RouteResponse, error) {
		return nil, status.Error(codes.Unavailable, "away")
	}
	service.mu.Unlock()
	for session, agent := range map[string]string{"a": "billing", "b": "chief", "c": "billing"} {
		turn, err := client.Route(t.Context(), &v1.RouteRequest{SessionId: session, Text: "hello"})
		if err != nil || !turn.Degraded || turn.AgentID() != agent {
			t.Error(session, turn, err)
		}
	}
}

func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestTokensTravelOverTLSAlone(t *testing.T) {
	own, pool := certificate(t)
	service := &scripted{}
	address := serve(t, service, grpc.Creds(credentials.NewServerTLSFromCert(&own)))
	count := 0
	source := func(context.Context) (string, error) {
		count++
		return fmt.Sprintf("token-%d", count), nil
	}
	client := open(t, address, agentrouting.WithTLS(&tls.Config{RootCAs: pool}), agentrouting.WithTokens(source))
	for range 2 {
		if _, err := client.Route(t.Context(), &v1.RouteRequest{Text: "hello"}); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(service.tokens, " "); got != "Bearer token-1 Bearer token-2" {
		t.Error(got)
	}
	if _, err := agentrouting.NewClient(address, agentrouting.WithTokens(source)); err == nil {
		t.Error("a token would have gone over plain text")
	}
}

func TestATokenThatIsNotToBeHadFailsTheCall(t *testing.T) {
	source := func(context.Context) (string, error) { return "", errors.New("the vault is locked") }
	client := open(t, serve(t, &scripted{}), agentrouting.WithInsecureTokens(source))
	_, err := client.Route(t.Context(), &v1.RouteRequest{Text: "hello"})
	if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "the vault is locked") {
		t.Error(err)
	}
}

func TestManyGoroutinesShareAStream(t *testing.T) {
	service := &scripted{}
	stream := open(t, serve(t, service)).Stream()
	defer stream.Close()
	var group sync.WaitGroup
	for number := range 500 {
		group.Add(1)
		go func() {
			defer group.Done()
			text := fmt.Sprint("message ", number)
			turn, err := stream.Route(t.Context(), &v1.RouteRequest{Text: text})
			if err != nil || turn.GetDispatch().GetText() != text {
				t.Error(turn, err)
			}
		}()
	}
	group.Wait()
	if count := len(service.asked()); count != 500 {
		t.Error(count)
	}
}

func TestAnswersThatComeTogetherGoEachToItsMessage(t *testing.T) {
	service := &scripted{together: 6, route: func(_ context.Context, attempt int) (*v1.RouteResponse, error) {
		if attempt == 4 {
			return nil, refusal(codes.InvalidArgument, agentrouting.InvalidField, nil)
		}
		return nil, nil
	}}
	stream := open(t, serve(t, service)).Stream()
	defer stream.Close()
	var pending []*agentrouting.Pending
	for number := range 6 {
		request := &v1.RouteRequest{Text: fmt.Sprint("message ", number)}
		pending = append(pending, stream.Send(t.Context(), request))
	}
	for number, message := range pending {
		turn, err := message.Wait()
		if number == 3 {
			if !errors.Is(err, agentrouting.InvalidField) {
				t.Error(turn, err)
			}
		} else if text := fmt.Sprint("message ", number); err != nil || turn.GetDispatch().GetText() != text {
			t.Error(number, turn, err)
		}
	}
	if count := len(service.asked()); count != 6 {
		t.Error(count)
	}
}

func TestAMessageOnAStreamIsSentAgainAndAStreamMadeAgain(t *testing.T) {
	service := &scripted{route: func(_ context.Context, attempt int) (*v1.RouteResponse, error) {
		switch attempt {
		case 1:
			return nil, refusal(codes.Unavailable, agentrouting.StoreUnavailable, nil)
		case 3:
			return nil, refusal(codes.Aborted, agentrouting.RevisionMismatch, nil)
		}
		return nil, nil
	}}
	stream := open(t, serve(t, service)).Stream()
	defer stream.Close()
	if turn, err := stream.Route(t.Context(), &v1.RouteRequest{Text: "one"}); err != nil || turn.Degraded {
		t.Error(turn, err)
	}
	// The scripted service ends the stream with it: what was refused is not sent again.
	if _, err := stream.Route(t.Context(), &v1.RouteRequest{Text: "two"}); !errors.Is(err, agentrouting.RevisionMismatch) {
		t.Error(err)
	}
	if turn, err := stream.Route(t.Context(), &v1.RouteRequest{Text: "three"}); err != nil || turn.Degraded {
		t.Error(turn, err)
	}
	if count := len(service.asked()); count != 4 {
		t.Error(count)
	}
}

func TestWhatIsClosedSaysSo(t *testing.T) {
	client := open(t, serve(t, &scripted{}))
	stream := client.Stream()
	stream.Close()
	if _, err := stream.Route(t.Context(), &v1.RouteRequest{Text: "hello"}); !errors.Is(err, agentrouting.ErrClosed) {
		t.Error(err)
	}
	other := client.Stream()
	client.Close()
	if _, err := client.Route(t.Context(), &v1.RouteRequest{Text: "hello"}); !errors.Is(err, agentrouting.ErrClosed) {
		t.Error(err)
	}
	if _, err := other.Route(t.Context(), &v1.RouteRequest{Text: "hello"}); !errors.Is(err, agentrouting.ErrClosed) {
		t.Error(err)
	}
}

func TestAWatchEndsWithItsContextAndSaysNothing(t *testing.T) {
	service := &scripted{watch: func(_ *v1.WatchSessionRequest, stream grpc.ServerStreamingServer[v1.WatchSessionResponse]) error {
		if err := stream.Send(&v1.WatchSessionResponse{Kind: &v1.WatchSessionResponse_Change{Change: &v1.Change{Revision: 1}}}); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	count := 0
	for change, err := range open(t, serve(t, service)).WatchSession(ctx, &v1.WatchSessionRequest{SessionId: "chat-1"}) {
		if err != nil {
			t.Fatal(err)
		}
		count += int(change.GetRevision())
		cancel()
	}
	if count != 1 {
		t.Error(count)
	}
}

func TestAWatchGivesUpWhenTheServiceStaysAway(t *testing.T) {
	var afterRevisions []int64
	service := &scripted{watch: func(request *v1.WatchSessionRequest, stream grpc.ServerStreamingServer[v1.WatchSessionResponse]) error {
		afterRevisions = append(afterRevisions, request.GetAfterRevision())
		if len(afterRevisions) == 1 {
			// A kind that is newer than the client: it is skipped.
			_ = stream.Send(&v1.WatchSessionResponse{})
			_ = stream.Send(&v1.WatchSessionResponse{Kind: &v1.WatchSessionResponse_Change{Change: &v1.Change{Revision: 7}}})
		}
		return status.Error(codes.Unavailable, "away")
	}}
	var last error
	changes := 0
	request := &v1.WatchSessionRequest{SessionId: "chat-1"}
	for change, err := range open(t, serve(t, service)).WatchSession(t.Context(), request, agentrouting.WithAwayTimeout(time.Second)) {
		if last = err; err == nil {
			changes += int(change.GetRevision())
		}
	}
	if changes != 7 || status.Code(last) != codes.Unavailable || len(afterRevisions) < 3 || afterRevisions[1] != 7 || request.AfterRevision != nil {
		t.Error(changes, last, afterRevisions)
	}
}

func TestEveryReasonOfTheContractHasAName(t *testing.T) {
	source, err := os.ReadFile("reasons.go")
	if err != nil {
		t.Fatal(err)
	}
	for number, name := range v1.ErrorReason_name {
		reason := strings.TrimPrefix(name, "ERROR_REASON_")
		if number != 0 && !strings.Contains(string(source), fmt.Sprintf("Reason = %q", reason)) {
			t.Error(reason, "is missing")
		}
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for _, option := range []agentrouting.Option{
		agentrouting.WithTimeout(0), agentrouting.WithRetry(agentrouting.RetryPolicy{}),
	} {
		if _, err := agentrouting.NewClient("127.0.0.1:1", option); err == nil {
			t.Error("no error")
		}
	}
}
