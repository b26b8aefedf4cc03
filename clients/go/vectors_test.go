package agentrouting_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	agentrouting "example.com/agent-routing/go"
	v1 "example.com/agent-routing/go/v1"
)

// The scenarios that all clients replay against a real server: tests/clients/vectors/README.md says
// what each part of them means.

const (
	root            = "../.."
	stepTimeout     = 30 * time.Second
	eventuallyPause = 50 * time.Millisecond
)

type scenario struct {
	Name   string
	Client struct {
		Tenant       string
		SupervisorID string  `json:"supervisor_id"`
		Fallback     *bool   // nil: true
		AttemptsMax  int     `json:"attempts_max"`
		TimeoutS     float64 `json:"timeout_s"`
	}
	Steps []step
}

type step struct {
	RPC, Name, Pages, Watch, Next, End, Stream, Network string
	SameAs                                              string `json:"same_as"`
	Request                                             any
	Answer, Error                                       any
	Replayed, Degraded, Eventually                      bool
	TimeoutS                                            float64 `json:"timeout_s"`
	WithinS                                             float64 `json:"within_s"`
	Capture                                             map[string]string
	Messages                                            []step
	AtOnce                                              int `json:"at_once"`
}

// result is what came of a step: an answer as JSON, or an error.
type result struct {
	answer             any
	err                error
	replayed, degraded bool
}

func TestVectors(t *testing.T) {
	server := startServer(t)
	files, err := filepath.Glob(filepath.Join(root, "tests/clients/vectors/*.json"))
	if err != nil || len(files) == 0 {
		t.Fatal("no vectors", err)
	}
	count := 0
	for _, file := range files {
		subject := strings.TrimSuffix(filepath.Base(file), ".json")
		if subject == "schema" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var vectors struct{ Scenarios []scenario }
		if err := json.Unmarshal(text, &vectors); err != nil {
			t.Fatal(file, err)
		}
		for _, each := range vectors.Scenarios {
			count++
			t.Run(subject+"/"+each.Name, func(t *testing.T) { play(t, server, each) })
		}
	}
	t.Logf("%d scenarios", count)
}

// A comparison that lets everything pass would make all of this worth nothing.
func TestWhatIsNotLikeItIsFound(t *testing.T) {
	for expected, actual := range map[string]string{
		`{"a": 1}`:                     `{"a": 2}`,
		`{"a": null}`:                  `{"a": ""}`,
		`{"a": true}`:                  `{"a": 1}`,
		`{"a": [1]}`:                   `{"a": [1, 2]}`,
		`{"b": [1]}`:                   `{}`,
		`{"a": {"b": 1}}`:              `{"a": "b"}`,
		`{"a": {"$present": true}}`:    `{}`,
		`{"a": {"$contains": "x"}}`:    `{"a": "y"}`,
		`{"a": {"$length": 1}}`:        `{"a": []}`,
		`{"a": {"$includes": [1, 3]}}`: `{"a": [1, 2]}`,
		`{"a": {"$uuid": 7}}`:          `{"a": "0198a6c0-0000-4000-8000-000000000001"}`,
		`{"a": {"$not": "x"}}`:         `{"a": "x"}`,
	} {
		var wanted, given any
		if json.Unmarshal([]byte(expected), &wanted) != nil || json.Unmarshal([]byte(actual), &given) != nil {
			t.Fatal(expected)
		}
		if compare(wanted, given, "at") == nil {
			t.Errorf("%s is taken for %s", actual, expected)
		}
	}
}

// server is the vector server.
type server struct {
	address string
	input   io.Writer
	output  *bufio.Reader
}

// python returns the interpreter that has the service.
func python() string {
	if named := os.Getenv("PYTHON"); named != "" {
		return named
	}
	return filepath.Join(root, ".venv/bin/python")
}

func startServer(t *testing.T) *server {
	t.Helper()
	command := exec.Command(python(), filepath.Join(root, "tests/clients/vector_server.py"))
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		if err := command.Wait(); err != nil {
			t.Error("the server:", err)
		}
	})
	started := &server{input: input, output: bufio.NewReader(output)}
	var said struct{ Address string }
	if line, err := started.output.ReadBytes('\n'); err != nil || json.Unmarshal(line, &said) != nil {
		t.Fatalf("the server said %q: %v", line, err)
	}
	started.address = said.Address
	return started
}

func (s *server) obey(word string) error {
	if _, err := fmt.Fprintln(s.input, word); err != nil {
		return err
	}
	line, err := s.output.ReadString('\n')
	if err == nil && line != "ok "+word+"\n" {
		err = fmt.Errorf("the server said %q", line)
	}
	return err
}

// playing is one scenario on its way.
type playing struct {
	server    *server
	client    *agentrouting.Client
	variables map[string]string
	answers   map[string]any
	watches   map[string]*watching
	streams   map[string]*agentrouting.RouteStream
}

type watching struct {
	next func() (*v1.Change, error, bool)
	stop func()
	end  context.CancelFunc
}

func play(t *testing.T, server *server, scenario scenario) {
	settings := scenario.Client
	timeout := stepTimeout
	if settings.TimeoutS > 0 {
		timeout = seconds(settings.TimeoutS)
	}
	options := []agentrouting.Option{
		agentrouting.WithTenant(settings.Tenant),
		agentrouting.WithTimeout(timeout),
		agentrouting.WithFallback(agentrouting.Fallback{SupervisorID: settings.SupervisorID}),
	}
	if settings.Fallback != nil && !*settings.Fallback {
		options = append(options, agentrouting.WithoutFallback())
	}
	if settings.AttemptsMax > 0 {
		retry := agentrouting.DefaultRetry
		retry.AttemptsMax = settings.AttemptsMax
		options = append(options, agentrouting.WithRetry(retry))
	}
	client, err := agentrouting.NewClient(server.address, options...)
	if err != nil {
		t.Fatal(err)
	}
	playing := &playing{
		server: server, client: client, variables: map[string]string{}, answers: map[string]any{},
		watches: map[string]*watching{}, streams: map[string]*agentrouting.RouteStream{},
	}
	defer playing.close(t)
	for number, step := range scenario.Steps {
		if err := playing.step(step); err != nil {
			t.Fatalf("step %d (%s%s%s%s%s%s): %v", number, step.RPC, step.Watch, step.Next, step.End, step.Stream, step.Network, err)
		}
	}
}

func (p *playing) close(t *testing.T) {
	if t.Failed() {
		// What this scenario disturbed must not fail the next ones.
		if err := p.server.obey("back"); err != nil {
			t.Error(err)
		}
	}
	for _, watch := range p.watches {
		watch.end()
		watch.stop()
	}
	for _, stream := range p.streams {
		stream.Close()
	}
	if err := p.client.Close(); err != nil {
		t.Error(err)
	}
}

func (p *playing) step(step step) error {
	switch {
	case step.Network != "":
		return p.server.obey(step.Network)
	case step.Watch != "":
		return p.watch(step)
	case step.Next != "":
		return p.next(step)
	case step.End != "":
		p.watches[step.End].end()
		p.watches[step.End].stop()
		delete(p.watches, step.End)
		return nil
	case step.Stream != "":
		return p.stream(step)
	}
	if step.AtOnce > 0 {
		all := make([]result, step.AtOnce)
		var calls sync.WaitGroup
		for place := range all {
			calls.Add(1)
			go func() {
				defer calls.Done()
				all[place] = p.call(step)
			}()
		}
		calls.Wait()
		for _, came := range all {
			if err := p.check(step, came); err != nil {
				return err
			}
		}
		return nil
	}
	late := time.Now().Add(stepTimeout)
	for {
		came := p.call(step)
		var failure *agentrouting.RoutingError
		isAway := came.degraded || errors.As(came.err, &failure) && failure.Code == codes.Unavailable
		if step.Eventually && isAway && time.Now().Before(late) {
			time.Sleep(eventuallyPause)
			continue
		}
		if came.err == nil && came.replayed != step.Replayed {
			return fmt.Errorf("replayed: expected %t", step.Replayed)
		}
		return p.check(step, came)
	}
}

func (p *playing) watch(step step) error {
	request := &v1.WatchSessionRequest{}
	if err := p.read(step.Request, request); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	next, stop := iter.Pull2(p.client.WatchSession(ctx, request))
	p.watches[step.Watch] = &watching{next, stop, cancel}
	return nil
}

func (p *playing) next(step step) error {
	watch := p.watches[step.Next]
	late := time.AfterFunc(stepTimeout, watch.end)
	defer late.Stop()
	change, err, ok := watch.next()
	if !ok {
		return errors.New("the watch gave nothing")
	}
	return p.check(step, asResult(change, err))
}

func (p *playing) stream(step step) error {
	if p.streams[step.Stream] == nil {
		p.streams[step.Stream] = p.client.Stream()
	}
	pending := make([]*agentrouting.Pending, len(step.Messages))
	for place, message := range step.Messages {
		request := &v1.RouteRequest{}
		if err := p.read(message.Request, request); err != nil {
			return err
		}
		pending[place] = p.streams[step.Stream].Send(context.Background(), request)
	}
	for place, message := range step.Messages {
		if err := p.check(message, turnResult(pending[place].Wait())); err != nil {
			return fmt.Errorf("message %d: %w", place, err)
		}
	}
	return nil
}

// call makes a step's call through the client.
func (p *playing) call(step step) result {
	ctx := context.Background()
	if step.TimeoutS > 0 {
		limited, cancel := context.WithTimeout(ctx, seconds(step.TimeoutS))
		defer cancel()
		ctx = limited
	}
	c := p.client
	if step.RPC == "Route" {
		request := &v1.RouteRequest{}
		if err := p.read(step.Request, request); err != nil {
			return result{err: err}
		}
		begun := time.Now()
		came := turnResult(c.Route(ctx, request))
		if took := time.Since(begun); step.WithinS > 0 && took > seconds(step.WithinS) {
			return result{err: fmt.Errorf("took %s, expected at most %v s", took, step.WithinS)}
		}
		return came
	}
	if step.Pages == "all" && step.RPC == "ListTasks" {
		return allPages(p, step, &v1.ListTasksRequest{}, "tasks", func(request *v1.ListTasksRequest) iter.Seq2[*v1.Task, error] {
			return c.AllTasks(ctx, request)
		})
	}
	if step.Pages == "all" && step.RPC == "ListWaiting" {
		return allPages(p, step, &v1.ListWaitingRequest{}, "entries", func(request *v1.ListWaitingRequest) iter.Seq2[*v1.WaitingConversation, error] {
			return c.AllWaiting(ctx, request)
		})
	}
	if step.Pages == "all" {
		return allPages(p, step, &v1.ListTurnsRequest{}, "turns", func(request *v1.ListTurnsRequest) iter.Seq2[*v1.Turn, error] {
			return c.AllTurns(ctx, request)
		})
	}
	switch step.RPC {
	case "SetActiveAgent":
		return callWith(ctx, p, step, &v1.SetActiveAgentRequest{}, c.SetActiveAgent)
	case "ClearActiveAgent":
		return callWith(ctx, p, step, &v1.ClearActiveAgentRequest{}, c.ClearActiveAgent)
	case "CancelTask":
		return callWith(ctx, p, step, &v1.CancelTaskRequest{}, c.CancelTask)
	case "Status":
		return callWith(ctx, p, step, &v1.StatusRequest{}, c.Status)
	case "CompleteTurn":
		return callWith(ctx, p, step, &v1.CompleteTurnRequest{}, c.CompleteTurn)
	case "ResumeTask":
		return callWith(ctx, p, step, &v1.ResumeTaskRequest{}, c.ResumeTask)
	case "ReportDegraded":
		return callWith(ctx, p, step, &v1.ReportDegradedRequest{}, c.ReportDegraded)
	case "ListTasks":
		return callWith(ctx, p, step, &v1.ListTasksRequest{}, c.ListTasks)
	case "ListTurns":
		return callWith(ctx, p, step, &v1.ListTurnsRequest{}, c.ListTurns)
	case "ListAgents":
		return callWith(ctx, p, step, &v1.ListAgentsRequest{}, c.ListAgents)
	case "ListWaiting":
		return callWith(ctx, p, step, &v1.ListWaitingRequest{}, c.ListWaiting)
	case "ClaimTurn":
		return callWith(ctx, p, step, &v1.ClaimTurnRequest{}, c.ClaimTurn)
	case "ReleaseTurn":
		return callWith(ctx, p, step, &v1.ReleaseTurnRequest{}, c.ReleaseTurn)
	case "KeepTurn":
		return callWith(ctx, p, step, &v1.KeepTurnRequest{}, c.Say)
	case "AddNote":
		return callWith(ctx, p, step, &v1.AddNoteRequest{}, c.AddNote)
	case "ListNotes":
		return callWith(ctx, p, step, &v1.ListNotesRequest{}, c.ListNotes)
	}
	return result{err: fmt.Errorf("no such step: %+v", step)}
}

type clientMethod[Request, Answer any] func(context.Context, Request, ...agentrouting.CallOption) (Answer, error)

func callWith[Request, Answer proto.Message](ctx context.Context, p *playing, step step, request Request, do clientMethod[Request, Answer]) result {
	if err := p.read(step.Request, request); err != nil {
		return result{err: err}
	}
	var info agentrouting.CallInfo
	answer, err := do(ctx, request, agentrouting.WithInfo(&info))
	came := asResult(answer, err)
	came.replayed = info.Replayed
	return came
}

func allPages[Request, Entry proto.Message](p *playing, step step, request Request, name string, all func(Request) iter.Seq2[Entry, error]) result {
	if err := p.read(step.Request, request); err != nil {
		return result{err: err}
	}
	entries := []any{}
	for entry, err := range all(request) {
		if err != nil {
			return result{err: err}
		}
		entries = append(entries, asResult(entry, nil).answer)
	}
	return result{answer: map[string]any{name: entries}}
}

func turnResult(turn *agentrouting.Turn, err error) result {
	if err != nil {
		return result{err: err}
	}
	came := asResult(turn.RouteResponse, nil)
	came.replayed, came.degraded = turn.Replayed, turn.Degraded
	return came
}

func asResult(message proto.Message, err error) result {
	if err != nil {
		return result{err: err}
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	var plain any
	if err == nil {
		err = json.Unmarshal(text, &plain)
	}
	return result{answer: plain, err: err}
}

func (p *playing) read(request any, message proto.Message) error {
	filled, err := p.filled(request)
	if err != nil {
		return err
	}
	text, err := json.Marshal(filled)
	if err != nil {
		return err
	}
	return protojson.Unmarshal(text, message)
}

// check holds a result against what the step expects.
func (p *playing) check(step step, came result) error {
	if came.err != nil {
		var failure *agentrouting.RoutingError
		if step.Error == nil || !errors.As(came.err, &failure) {
			return fmt.Errorf("failed: %w", came.err)
		}
		if failure.Reason != "" && !errors.Is(came.err, failure.Reason) {
			return fmt.Errorf("errors.Is does not find %s", failure.Reason)
		}
		expected, err := p.filled(step.Error)
		if err != nil {
			return err
		}
		return compare(expected, errorAsJSON(failure), "error")
	}
	if step.Error != nil {
		return fmt.Errorf("expected the error %v, got the answer %v", step.Error, came.answer)
	}
	if came.degraded != step.Degraded {
		return fmt.Errorf("degraded: expected %t", step.Degraded)
	}
	expected, err := p.filled(step.Answer)
	if err != nil {
		return err
	}
	if err := compare(expected, came.answer, "answer"); err != nil {
		return err
	}
	if step.SameAs != "" && !reflect.DeepEqual(p.answers[step.SameAs], came.answer) {
		return fmt.Errorf("not the first answer %v but %v", p.answers[step.SameAs], came.answer)
	}
	p.answers[step.Name] = came.answer
	for variable, path := range step.Capture {
		value, err := atPath(came.answer, path)
		if err != nil {
			return err
		}
		p.variables[variable] = value
	}
	return nil
}

func errorAsJSON(failure *agentrouting.RoutingError) map[string]any {
	metadata := map[string]any{}
	for key, value := range failure.Metadata {
		metadata[key] = value
	}
	violations := []any{}
	for _, each := range failure.Violations {
		violations = append(violations, map[string]any{"name": each.Name, "subject": each.Subject, "detail": each.Detail})
	}
	return map[string]any{
		"code": codeName(failure.Code), "reason": string(failure.Reason), "message": failure.Message,
		"metadata": metadata, "request_id": failure.RequestID, "session_id": failure.SessionID, "violations": violations,
	}
}

var capital = regexp.MustCompile("([a-z])([A-Z])")

// codeName returns what the contract calls a code: NOT_FOUND, where Go says NotFound.
func codeName(code codes.Code) string {
	return strings.ToUpper(capital.ReplaceAllString(code.String(), "${1}_${2}"))
}

func atPath(value any, path string) (string, error) {
	for _, part := range strings.Split(path, ".") {
		switch inside := value.(type) {
		case map[string]any:
			value = inside[part]
		case []any:
			place, err := strconv.Atoi(part)
			if err != nil || place >= len(inside) {
				return "", fmt.Errorf("there is no %s", path)
			}
			value = inside[place]
		}
	}
	text, ok := value.(string)
	if !ok {
		return "", fmt.Errorf("%s is %v; only texts are captured", path, value)
	}
	return text, nil
}

var variable = regexp.MustCompile(`\$\{([^}]+)\}`)

// filled returns a part of a vector with its variables filled in.
func (p *playing) filled(value any) (any, error) {
	switch value := value.(type) {
	case string:
		var failure error
		return variable.ReplaceAllStringFunc(value, func(found string) string {
			filled, err := p.variable(found[2 : len(found)-1])
			if err != nil {
				failure = err
			}
			return filled
		}), failure
	case map[string]any:
		made := map[string]any{}
		for key, each := range value {
			filled, err := p.filled(each)
			if err != nil {
				return nil, err
			}
			made[key] = filled
		}
		return made, nil
	case []any:
		made := make([]any, len(value))
		for place, each := range value {
			filled, err := p.filled(each)
			if err != nil {
				return nil, err
			}
			made[place] = filled
		}
		return made, nil
	}
	return value, nil
}

func (p *playing) variable(name string) (string, error) {
	if value, ok := p.variables[name]; ok {
		return value, nil
	}
	kind, rest, _ := strings.Cut(name, ":")
	switch kind {
	case "uuid":
		p.variables[name] = agentrouting.NewUUID7()
	case "id":
		p.variables[name] = "vector-" + agentrouting.NewUUID7()
	case "x":
		count, err := strconv.Atoi(rest)
		if err != nil {
			return "", err
		}
		p.variables[name] = strings.Repeat("x", count)
	default:
		return "", fmt.Errorf("nothing has captured ${%s}", name)
	}
	return p.variables[name], nil
}

var uuidForm = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// compare compares a result with the expected one; the error says where it differs.
func compare(expected, actual any, at string) error {
	ok := false
	switch expected := expected.(type) {
	case map[string]any:
		if matcher, argument, found := matcherOf(expected); found {
			ok = matches(matcher, argument, actual)
			break
		}
		members, isObject := actual.(map[string]any)
		ok = isObject
		for key, value := range expected {
			if !isObject {
				break
			}
			if err := compare(value, members[key], at+"."+key); err != nil {
				return err
			}
		}
	case []any:
		elements, _ := actual.([]any)
		ok = len(elements) == len(expected)
		for place, value := range expected {
			if !ok {
				break
			}
			if err := compare(value, elements[place], at+"."+strconv.Itoa(place)); err != nil {
				return err
			}
		}
	default:
		ok = expected == actual
	}
	if !ok {
		return fmt.Errorf("%s: expected %v, got %v", at, expected, actual)
	}
	return nil
}

func matcherOf(expected map[string]any) (string, any, bool) {
	for key, argument := range expected {
		if len(expected) == 1 && strings.HasPrefix(key, "$") {
			return key, argument, true
		}
	}
	return "", nil, false
}

func matches(matcher string, argument, actual any) bool {
	text, isText := actual.(string)
	elements, isList := actual.([]any)
	switch matcher {
	case "$present":
		return actual != nil
	case "$contains":
		return isText && strings.Contains(text, argument.(string))
	case "$length":
		return float64(len(elements)) == argument
	case "$uuid":
		found := uuidForm.FindStringSubmatch(text)
		return found != nil && found[1] == strconv.Itoa(int(argument.(float64)))
	case "$not":
		return argument != actual
	case "$includes":
		for _, part := range argument.([]any) {
			found := false
			for _, element := range elements {
				found = found || compare(part, element, "") == nil
			}
			if !found {
				return false
			}
		}
		return isList
	}
	return false
}

func seconds(count float64) time.Duration { return time.Duration(count * float64(time.Second)) }
