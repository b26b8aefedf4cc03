package agentrouting;

import agentrouting.v1.Agent;
import agentrouting.v1.AgentKind;
import agentrouting.v1.CancelTaskRequest;
import agentrouting.v1.CancelTaskResponse;
import agentrouting.v1.ClearActiveAgentRequest;
import agentrouting.v1.ClearActiveAgentResponse;
import agentrouting.v1.CompleteTurnResponse;
import agentrouting.v1.Dispatch;
import agentrouting.v1.ListAgentsResponse;
import agentrouting.v1.Reply;
import agentrouting.v1.ResumeTaskRequest;
import agentrouting.v1.ResumeTaskResponse;
import agentrouting.v1.RouteReason;
import agentrouting.v1.RouteRequest;
import agentrouting.v1.RouteResponse;
import agentrouting.v1.SetActiveAgentRequest;
import agentrouting.v1.SetActiveAgentResponse;
import agentrouting.v1.StatusResponse;
import com.google.protobuf.Message;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Instant;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * The last known agent of each session, learnt from answers, and the decision made from it while
 * the service is away.
 */
final class KnownAgents {
  /** Different descriptions of agents that are kept: agents times locales, over all sessions. */
  private static final int AGENT_TEXTS_MAX = 1_000;

  /** Of the file with the home agent: an id and the line's end. */
  private static final int HOME_BYTES_MAX = 130;

  private static final System.Logger LOG = System.getLogger("agentrouting");

  /** Commands that may have changed the active agent although the answer has a reply only. */
  private static final Set<String> LEAVING_COMMANDS = Set.of("/supervisor", "/reset", "/agent");

  /** What is known about a session at a revision. agent null: the home agent. */
  private record Known(long revision, Agent agent, String taskId) {}

  private final int sessionsMax;
  private final Path homeFile; // null: none
  private final boolean understandsCommands;
  private String homeId;
  // In the order of their last use, the oldest first.
  private final LinkedHashMap<String, Known> sessions = new LinkedHashMap<>(16, 0.75f, true);
  private final Map<String, String> sessionByTask = new HashMap<>();
  private final Map<Agent, Agent> agents = new HashMap<>();

  KnownAgents(Fallback fallback) {
    sessionsMax = fallback.sessionsMax();
    homeFile = fallback.homeFile();
    understandsCommands = fallback.commands();
    homeId = fallback.supervisorId().isEmpty() ? readHome(homeFile) : fallback.supervisorId();
  }

  /** Records what an answer says about its session, or about the home agent. */
  synchronized void learn(Message request, Message answer) {
    if (request instanceof RouteRequest route && route.getValidateOnly()
        || request instanceof SetActiveAgentRequest set && set.getValidateOnly()
        || request instanceof ClearActiveAgentRequest clear && clear.getValidateOnly()
        || request instanceof ResumeTaskRequest resume && resume.getValidateOnly()
        || request instanceof CancelTaskRequest cancel && cancel.getValidateOnly()) {
      return;
    }
    if (answer instanceof RouteResponse made) {
      learnRoute(made);
    } else if (answer instanceof CompleteTurnResponse made) {
      Agent agent = made.hasActiveAgent() ? made.getActiveAgent() : null;
      agent = made.hasNext() ? made.getNext().getAgent() : agent;
      remember(made.getSessionId(), made.getRevision(), agent, made.getTaskId());
    } else if (answer instanceof SetActiveAgentResponse made) {
      remember(made.getSessionId(), made.getRevision(), made.getAgent(), made.getTaskId());
    } else if (answer instanceof ClearActiveAgentResponse made) {
      learnHome(made.getAgent().getAgentId());
      remember(made.getSessionId(), made.getRevision(), null, made.getTaskId());
    } else if (answer instanceof CancelTaskResponse made) {
      learnHome(made.getAgent().getAgentId());
      remember(made.getSessionId(), made.getRevision(), null, made.getTaskId());
    } else if (answer instanceof StatusResponse made) {
      remember(
          made.getSessionId(), made.getRevision(), made.getNextAgent(), made.getTask().getTaskId());
    } else if (answer instanceof ResumeTaskResponse made) {
      remember(
          made.getSessionId(),
          made.getRevision(),
          made.getDispatch().getAgent(),
          made.getTaskId());
    } else if (answer instanceof ListAgentsResponse made) {
      learnHome(made.getHomeAgentId());
    }
  }

  /** Drops a session that does not exist, or no longer exists, according to the service. */
  synchronized void forget(String sessionId, RoutingException error) {
    if (error instanceof RoutingException.UnknownSession
        || error instanceof RoutingException.SessionErased) {
      drop(sessionId);
    }
  }

  /** Returns and logs the decision for a message that could not be routed; see degradedAnswer. */
  Optional<RouteResult> decided(RouteRequest request, RoutingException error) {
    if (error.getCause() instanceof InterruptedException) {
      return Optional.empty();
    }
    return degradedAnswer(request, error)
        .map(
            answer -> {
              LOG.log(
                  System.Logger.Level.WARNING,
                  "route_degraded session_id={0} request_id={1} agent_id={2} code={3} reason={4}"
                      + " attempts={5}",
                  answer.getSessionId(),
                  answer.getRequestId(),
                  answer.getDispatch().getAgent().getAgentId(),
                  error.code(),
                  error.reason(),
                  error.attempts());
              Long revision = revision(answer.getSessionId());
              return new RouteResult(answer, true, false, error, revision, Instant.now());
            });
  }

  /**
   * Returns the decision for a message that could not be routed. Empty: the client may not decide,
   * because the failure was a decision, the call a dry run, or no agent is known.
   */
  synchronized Optional<RouteResponse> degradedAnswer(RouteRequest request, RoutingException error) {
    if (!error.mayFallBack() || request.getValidateOnly()) {
      return Optional.empty();
    }
    String sessionId = request.getSessionId();
    if (sessionId.isEmpty()) {
      sessionId = sessionByTask.getOrDefault(request.getTaskId(), "");
    }
    Optional<AwayCommands.AwayCommand> command = commandIn(request);
    boolean leadsHome = command.isPresent() && command.get().leadsHome();
    if (leadsHome) {
      sessions.computeIfPresent(
          sessionId, (id, before) -> new Known(before.revision, null, before.taskId));
    }
    Known known = sessions.getOrDefault(sessionId, new Known(0, null, ""));
    String text = command.map(AwayCommands.AwayCommand::rest).orElse(request.getText());
    boolean isForAgent =
        command.isEmpty() || leadsHome && !(text.isEmpty() && request.getItemsCount() == 0);
    if (isForAgent && known.agent == null && homeId.isEmpty()) {
      return Optional.empty();
    }
    Agent agent =
        known.agent != null ? known.agent : Agent.newBuilder().setAgentId(homeId).build();
    String taskId = request.getTaskId().isEmpty() ? known.taskId : request.getTaskId();
    Dispatch dispatch =
        Dispatch.newBuilder()
            .setRequestId(request.getRequestId())
            .setTaskId(taskId)
            .setAgent(agent)
            .setReason(RouteReason.ROUTE_REASON_DEGRADED)
            .setReasonDetail("degraded: " + error.getMessage())
            .setText(text)
            .addAllItems(request.getItemsList())
            .build();
    RouteResponse.Builder answer =
        RouteResponse.newBuilder()
            .setSessionId(sessionId)
            .setTaskId(taskId)
            .setRequestId(request.getRequestId());
    command.ifPresent(
        found -> {
          AwayCommands.AwayReply shown = AwayCommands.reply(found, request.getLocale());
          answer.setReply(
              Reply.newBuilder()
                  .setCommand("/" + found.name())
                  .setText(shown.text())
                  .setLocale(shown.locale()));
        });
    if (isForAgent) {
      answer
          .setDispatch(dispatch)
          .setSupervisorBypassed(known.agent != null && !agent.getAgentId().equals(homeId));
    }
    return Optional.of(answer.build());
  }

  /** Tells whether a message could be decided without the service. */
  synchronized boolean mayDecide(RouteRequest request) {
    if (request.getValidateOnly()) {
      return false;
    }
    if (!homeId.isEmpty()) {
      return true;
    }
    String sessionId = request.getSessionId();
    if (sessionId.isEmpty()) {
      sessionId = sessionByTask.getOrDefault(request.getTaskId(), "");
    }
    Known known = sessions.get(sessionId);
    return known != null && known.agent != null && commandIn(request).isEmpty();
  }

  private Optional<AwayCommands.AwayCommand> commandIn(RouteRequest request) {
    return request.getLiteralText() || !understandsCommands
        ? Optional.empty()
        : AwayCommands.parse(request.getText());
  }

  /** Returns the last known revision of a session; null: it is not known. */
  synchronized Long revision(String sessionId) {
    Known found = sessions.get(sessionId);
    return found == null ? null : Long.valueOf(found.revision);
  }

  private void learnHome(String agentId) {
    if (agentId.isEmpty() || agentId.equals(homeId)) {
      return;
    }
    homeId = agentId;
    if (homeFile == null) {
      return;
    }
    try {
      Path folder = homeFile.toAbsolutePath().getParent();
      Path fresh = Files.createTempFile(folder, "home", null);
      Files.writeString(fresh, agentId + "\n");
      Files.move(fresh, homeFile, StandardCopyOption.REPLACE_EXISTING);
    } catch (IOException unwritable) {
      // No reason to fail a call.
      LOG.log(System.Logger.Level.WARNING, "home_file_not_written path={0}", homeFile);
    }
  }

  private static String readHome(Path file) {
    try {
      if (file == null || Files.size(file) > HOME_BYTES_MAX) {
        return "";
      }
      return Files.readString(file).strip();
    } catch (IOException unreadable) {
      return "";
    }
  }

  private void learnRoute(RouteResponse answer) {
    if (answer.hasDispatch()) {
      Dispatch dispatch = answer.getDispatch();
      if (dispatch.getAgent().getKind() == AgentKind.AGENT_KIND_SUPERVISOR
          || dispatch.getReason() == RouteReason.ROUTE_REASON_NO_ACTIVE_AGENT
          || dispatch.getReason() == RouteReason.ROUTE_REASON_DEFAULT_AGENT) {
        learnHome(dispatch.getAgent().getAgentId());
      }
      remember(
          answer.getSessionId(), answer.getRevision(), dispatch.getAgent(), answer.getTaskId());
    } else if (LEAVING_COMMANDS.contains(answer.getReply().getCommand())) {
      // The reply does not say which agent is active now. The home agent is always safe.
      remember(answer.getSessionId(), answer.getRevision(), null, answer.getTaskId());
    }
  }

  /** Stores what is known about a session, unless newer information is stored. */
  private void remember(String sessionId, long revision, Agent agent, String taskId) {
    Known before = sessions.get(sessionId);
    // Answers of parallel calls arrive in any order, and a replayed one is old.
    if (before != null && revision < before.revision) {
      return;
    }
    if (before != null && !before.taskId.equals(taskId)) {
      sessionByTask.remove(before.taskId);
    }
    if (!taskId.isEmpty()) {
      sessionByTask.put(taskId, sessionId);
    }
    sessions.put(sessionId, new Known(revision, shared(agent), taskId));
    if (sessions.size() > sessionsMax) {
      drop(sessions.keySet().iterator().next());
    }
  }

  private void drop(String sessionId) {
    Known gone = sessions.remove(sessionId);
    if (gone != null) {
      sessionByTask.remove(gone.taskId);
    }
  }

  /** Returns the copy of an agent's description that sessions share. */
  private Agent shared(Agent agent) {
    if (agent == null || agent.getAgentId().isEmpty()) {
      return null;
    }
    if (agents.size() >= AGENT_TEXTS_MAX && !agents.containsKey(agent)) {
      agents.clear();
    }
    return agents.computeIfAbsent(agent, same -> same);
  }
}
