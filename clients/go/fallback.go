package agentrouting

import (
	"cmp"
	"container/list"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	v1 "example.com/agent-routing/go/v1"
)

const (
	// DefaultFallbackSessions is how many sessions a client remembers: about 4 MB. A session that was
	// evicted falls back to the supervisor.
	DefaultFallbackSessions = 10_000
	// Different descriptions of agents that are kept: agents times locales, over all sessions.
	agentTextsMax = 1_000
	// Of the file with the home agent: an id and the line's end.
	homeBytesMax = 130
)

// Fallback says what a client may decide alone while the service cannot be reached.
type Fallback struct {
	// SupervisorID is the agent for sessions without a known agent. Empty: the home agent, once an
	// answer has named it; until then Route fails.
	SupervisorID string
	// SessionsMax is how many sessions are remembered, the last used ones. 0: DefaultFallbackSessions.
	SessionsMax int
	// HomeFile is a small file in which the home agent's id is kept, so that a new process knows it.
	// Empty: none.
	HomeFile string
	// IgnoreCommands switches off that commands in messages are understood while the service is away,
	// for lessons that users may not leave.
	IgnoreCommands bool
}

// known is what is known about a session at a revision. agent nil: the home agent.
type known struct {
	sessionID string
	revision  int64
	agent     *v1.Agent
	taskID    string
}

// knownAgents has the last known agent of each session, learnt from answers.
type knownAgents struct {
	mu            sync.Mutex
	sessionsMax   int
	homeID        string
	homeFile      string
	ignores       bool
	sessions      map[string]*list.Element // of *known, the last used ones at the back
	order         *list.List
	sessionByTask map[string]string
	agents        map[string]*v1.Agent
}

func newKnownAgents(fallback Fallback) *knownAgents {
	sessionsMax := fallback.SessionsMax
	if sessionsMax == 0 {
		sessionsMax = DefaultFallbackSessions
	}
	return &knownAgents{
		sessionsMax:   sessionsMax,
		homeID:        cmp.Or(fallback.SupervisorID, readHome(fallback.HomeFile)),
		homeFile:      fallback.HomeFile,
		ignores:       fallback.IgnoreCommands,
		sessions:      map[string]*list.Element{},
		order:         list.New(),
		sessionByTask: map[string]string{},
		agents:        map[string]*v1.Agent{},
	}
}

// learn records what an answer says about its session, or about the home agent.
func (k *knownAgents) learn(request, answer proto.Message) {
	if dry, ok := request.(interface{ GetValidateOnly() bool }); ok && dry.GetValidateOnly() {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch answer := answer.(type) {
	case *v1.RouteResponse:
		k.learnRoute(answer)
	case *v1.CompleteTurnResponse:
		agent := answer.GetActiveAgent()
		if answer.GetNext() != nil {
			agent = answer.GetNext().GetAgent()
		}
		k.remember(answer.GetSessionId(), answer.GetRevision(), agent, answer.GetTaskId())
	case *v1.SetActiveAgentResponse:
		k.remember(answer.GetSessionId(), answer.GetRevision(), answer.GetAgent(), answer.GetTaskId())
	case *v1.ClearActiveAgentResponse:
		k.learnHome(answer.GetAgent().GetAgentId())
		k.remember(answer.GetSessionId(), answer.GetRevision(), nil, answer.GetTaskId())
	case *v1.CancelTaskResponse:
		k.learnHome(answer.GetAgent().GetAgentId())
		k.remember(answer.GetSessionId(), answer.GetRevision(), nil, answer.GetTaskId())
	case *v1.StatusResponse:
		k.remember(answer.GetSessionId(), answer.GetRevision(), answer.GetNextAgent(), answer.GetTask().GetTaskId())
	case *v1.ResumeTaskResponse:
		k.remember(answer.GetSessionId(), answer.GetRevision(), answer.GetDispatch().GetAgent(), answer.GetTaskId())
	case *v1.ListAgentsResponse:
		k.learnHome(answer.GetHomeAgentId())
	}
}

func (k *knownAgents) learnRoute(answer *v1.RouteResponse) {
	dispatch := answer.GetDispatch()
	if dispatch == nil {
		switch answer.GetReply().GetCommand() {
		case "/supervisor", "/reset", "/agent":
			// The reply does not say which agent is active now. The home agent is always safe.
			k.remember(answer.GetSessionId(), answer.GetRevision(), nil, answer.GetTaskId())
		}
		return
	}
	if dispatch.GetAgent().GetKind() == v1.AgentKind_AGENT_KIND_SUPERVISOR ||
		dispatch.GetReason() == v1.RouteReason_ROUTE_REASON_NO_ACTIVE_AGENT ||
		dispatch.GetReason() == v1.RouteReason_ROUTE_REASON_DEFAULT_AGENT {
		k.learnHome(dispatch.GetAgent().GetAgentId())
	}
	k.remember(answer.GetSessionId(), answer.GetRevision(), dispatch.GetAgent(), answer.GetTaskId())
}

// forget drops a session that does not exist, or no longer exists, according to the service.
func (k *knownAgents) forget(sessionID string, err *RoutingError) {
	if errors.Is(err, UnknownSession) || errors.Is(err, SessionErased) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if element, ok := k.sessions[sessionID]; ok {
			k.drop(element)
		}
	}
}

// degradedAnswer returns the decision for a message that could not be routed. nil: the client may
// not decide, because the failure was a decision, the call a dry run, or no agent is known.
func (k *knownAgents) degradedAnswer(request *v1.RouteRequest, err *RoutingError) *v1.RouteResponse {
	if !err.mayFallBack() || request.GetValidateOnly() {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	sessionID := request.GetSessionId()
	if sessionID == "" {
		sessionID = k.sessionByTask[request.GetTaskId()]
	}
	command, isCommand := k.commandIn(request)
	found := &known{}
	if element, ok := k.sessions[sessionID]; ok {
		found = element.Value.(*known)
		if command.leadsHome() {
			found.agent = nil
		}
	}
	text := request.GetText()
	if isCommand {
		text = command.rest
	}
	isForAgent := !isCommand || command.leadsHome() && (text != "" || len(request.GetItems()) > 0)
	agent := &v1.Agent{AgentId: k.homeID}
	if found.agent != nil {
		agent = proto.Clone(found.agent).(*v1.Agent)
	} else if k.homeID == "" && isForAgent {
		return nil
	}
	taskID := request.GetTaskId()
	if taskID == "" {
		taskID = found.taskID
	}
	answer := &v1.RouteResponse{SessionId: sessionID, TaskId: taskID, RequestId: request.GetRequestId()}
	if isCommand {
		shown, language := command.reply(request.GetLocale())
		answer.Reply = &v1.Reply{Command: "/" + command.name, Text: shown, Locale: language}
	}
	if isForAgent {
		answer.SupervisorBypassed = found.agent != nil && found.agent.GetAgentId() != k.homeID
		answer.Dispatch = &v1.Dispatch{
			RequestId:    request.GetRequestId(),
			TaskId:       taskID,
			Agent:        agent,
			Reason:       v1.RouteReason_ROUTE_REASON_DEGRADED,
			ReasonDetail: "degraded: " + err.Message,
			Text:         text,
			Items:        request.GetItems(),
		}
	}
	return answer
}

// mayDecide tells whether a message could be decided without the service.
func (k *knownAgents) mayDecide(request *v1.RouteRequest) bool {
	if request.GetValidateOnly() {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.homeID != "" {
		return true
	}
	sessionID := cmp.Or(request.GetSessionId(), k.sessionByTask[request.GetTaskId()])
	element, ok := k.sessions[sessionID]
	_, isCommand := k.commandIn(request)
	return ok && element.Value.(*known).agent != nil && !isCommand
}

func (k *knownAgents) commandIn(request *v1.RouteRequest) (awayCommand, bool) {
	if request.GetLiteralText() || k.ignores {
		return awayCommand{}, false
	}
	return parseCommand(request.GetText())
}

// learnHome records the home agent, in the file too. A file that cannot be written fails no call.
func (k *knownAgents) learnHome(agentID string) {
	if agentID == "" || agentID == k.homeID {
		return
	}
	k.homeID = agentID
	if k.homeFile == "" {
		return
	}
	file, err := os.CreateTemp(filepath.Dir(k.homeFile), ".home-*")
	if err != nil {
		return
	}
	_, err = file.WriteString(agentID + "\n")
	if errors.Join(err, file.Close()) == nil {
		err = os.Rename(file.Name(), k.homeFile)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
}

func readHome(path string) string {
	if path == "" {
		return ""
	}
	kept, err := os.ReadFile(path)
	if err != nil || len(kept) > homeBytesMax {
		return ""
	}
	return strings.TrimSpace(string(kept))
}

// revision returns the last known revision of a session; nil if it is not known.
func (k *knownAgents) revision(sessionID string) *int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if element, ok := k.sessions[sessionID]; ok {
		return proto.Int64(element.Value.(*known).revision)
	}
	return nil
}

// remember stores what is known about a session, unless newer information is stored.
func (k *knownAgents) remember(sessionID string, revision int64, agent *v1.Agent, taskID string) {
	element, ok := k.sessions[sessionID]
	if ok {
		k.order.MoveToBack(element)
		before := element.Value.(*known)
		// Answers of parallel calls arrive in any order, and a replayed one is old.
		if revision < before.revision {
			return
		}
		if before.taskID != taskID {
			delete(k.sessionByTask, before.taskID)
		}
		element.Value = &known{sessionID, revision, k.shared(agent), taskID}
	} else {
		k.sessions[sessionID] = k.order.PushBack(&known{sessionID, revision, k.shared(agent), taskID})
	}
	if taskID != "" {
		k.sessionByTask[taskID] = sessionID
	}
	if k.order.Len() > k.sessionsMax {
		k.drop(k.order.Front())
	}
}

func (k *knownAgents) drop(element *list.Element) {
	gone := k.order.Remove(element).(*known)
	delete(k.sessions, gone.sessionID)
	delete(k.sessionByTask, gone.taskID)
}

// shared returns the shared copy of an agent's description: a part of an answer would keep the
// whole answer in memory, for each session.
func (k *knownAgents) shared(agent *v1.Agent) *v1.Agent {
	if agent.GetAgentId() == "" {
		return nil
	}
	key, err := proto.MarshalOptions{Deterministic: true}.Marshal(agent)
	if err != nil {
		return nil
	}
	found, ok := k.agents[string(key)]
	if !ok {
		if len(k.agents) >= agentTextsMax {
			clear(k.agents)
		}
		found = proto.Clone(agent).(*v1.Agent)
		k.agents[string(key)] = found
	}
	return found
}
