package agentrouting;

import agentrouting.v1.CompleteTurnRequest;
import agentrouting.v1.Item;
import agentrouting.v1.ListApprovalsRequest;
import agentrouting.v1.RouteRequest;
import agentrouting.v1.Step;
import agentrouting.v1.Turn;
import agentrouting.v1.WatchApprovalsRequest;
import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.Struct;
import com.google.protobuf.Value;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A worker whose agents do what a message says, and a frontend that asks; see
 * tests/clients/vectors/workers/README.md.
 *
 * <pre>ScriptedWorker work ADDRESS OPTIONS | ask ADDRESS | approvals ADDRESS</pre>
 */
final class ScriptedWorker {
  private static final Gson JSON = new Gson();

  private ScriptedWorker() {}

  public static void main(String[] arguments) throws IOException {
    try (RoutingClient client = RoutingClient.to(arguments[1])) {
      if (arguments[0].equals("approvals")) {
        approvals(client);
      } else if (arguments[0].equals("ask")) {
        ask(client);
      } else {
        work(client, JsonParser.parseString(arguments[2]).getAsJsonObject());
      }
    }
  }

  /** Lists what waits for an approval, then watches it. */
  private static void approvals(RoutingClient client) {
    List<String> sessions = new ArrayList<>();
    client
        .allApprovals(ListApprovalsRequest.newBuilder().setPageSize(1).build())
        .forEach(waiting -> sessions.add(waiting.getSessionId()));
    say(Map.of("event", "listed", "sessions", sessions));
    var request = WatchApprovalsRequest.getDefaultInstance();
    try (ApprovalWatch watch = client.watchApprovals(request, Watch.AWAY_TIMEOUT_DEFAULT)) {
      for (var news : watch) {
        boolean isWaiting = news.hasWaiting();
        String session =
            isWaiting ? news.getWaiting().getSessionId() : news.getEnded().getSessionId();
        say(Map.of("event", isWaiting ? "waiting" : "ended", "session_id", session));
      }
    }
  }

  private static synchronized void say(Map<String, ?> line) {
    System.out.println(JSON.toJson(line));
    System.out.flush();
  }

  private static void work(RoutingClient client, JsonObject options) {
    Worker worker = new Worker(client);
    if (options.has("lease_ms")) {
      worker.lease(Duration.ofMillis(options.get("lease_ms").getAsLong()));
    }
    if (options.has("stop_timeout_ms")) {
      worker.stopTimeout(Duration.ofMillis(options.get("stop_timeout_ms").getAsLong()));
    }
    if (options.has("attempts")) {
      worker.attempts(options.get("attempts").getAsInt());
    }
    for (JsonElement each : options.getAsJsonArray("agents")) {
      String agentId = each.getAsString();
      String own = agentId + "@" + options.get("number").getAsInt();
      worker.agent(
          agentId,
          turn -> {
            say(
                Map.of(
                    "event", "began",
                    "agent_id", agentId,
                    "attempt", turn.attempt(),
                    "request_id", turn.requestId()));
            JsonObject script = JsonParser.parseString(turn.text()).getAsJsonObject();
            JsonArray actions = script.getAsJsonArray(script.has(own) ? own : agentId);
            int place = Math.min(turn.attempt(), actions.size()) - 1;
            var action = actions.get(place).getAsJsonObject().entrySet().iterator().next();
            JsonElement given = action.getValue();
            return given.isJsonArray()
                ? say(turn, action.getKey(), given.getAsJsonArray())
                : act(turn, action.getKey(), given.getAsString());
          });
    }
    worker.run();
  }

  /** Says what is done, while it is done. */
  private static CompleteTurnRequest.Builder say(InboxTurn turn, String kind, JsonArray texts)
      throws InterruptedException {
    if (kind.equals("steps")) {
      texts.forEach(name -> turn.step(name.getAsString(), "", ""));
      return Answers.say("done");
    }
    turn.note("one moment");
    turn.step("search", "VAT", "2 pages");
    for (JsonElement part : texts) {
      turn.delta(part.getAsString());
      Thread.sleep(400);
    }
    return Answers.say(turn.written());
  }

  private static CompleteTurnRequest.Builder act(InboxTurn turn, String kind, String text)
      throws InterruptedException {
    switch (kind) {
      case "say":
        return Answers.say(text);
      case "say_late":
        Thread.sleep(4_000);
        return Answers.say(text);
      case "follow_up":
        return Answers.followUp(text);
      case "complete":
        return Answers.complete("done", text);
      case "handoff":
        return Answers.handOff(text, "asked").setText("one moment");
      case "approval_needed":
        Value amount = Value.newBuilder().setNumberValue(20).build();
        return Answers.approvalNeeded(
            text, Struct.newBuilder().putFields("amount", amount).build());
      case "failure":
        return Answers.failed(text);
      case "answer":
        return Answers.say(text)
            .addItems(Item.newBuilder().setContentType("text/plain").setText("more"))
            .addSteps(Step.newBuilder().setName("look up").setKind("tool"));
      case "raise":
        throw new IllegalStateException(text);
      case "nothing":
        return null;
      case "write_and_raise":
        turn.delta(text);
        Thread.sleep(500);
        throw new IllegalStateException(text);
      case "step_and_die":
        turn.step(text, "", "");
        Thread.sleep(500);
        kill();
        return null;
      case "die":
        kill(); // The JVM's own end would run its hooks.
        return null;
      default:
        if (kind.equals("write_and_hang")) {
          turn.delta(text);
        }
        try {
          Thread.sleep(Long.MAX_VALUE);
        } catch (InterruptedException lost) {
          say(Map.of("event", "stopped", "agent_id", turn.agentId()));
          throw lost;
        }
        return null;
    }
  }

  private static void kill() throws InterruptedException {
    try {
      String self = Long.toString(ProcessHandle.current().pid());
      new ProcessBuilder("kill", "-9", self).start();
    } catch (IOException impossible) {
      throw new IllegalStateException(impossible);
    }
    Thread.sleep(Long.MAX_VALUE);
  }

  private static void ask(RoutingClient client) throws IOException {
    var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      JsonObject given = JsonParser.parseString(line).getAsJsonObject();
      RouteRequest request =
          RouteRequest.newBuilder()
              .setText(given.get("text").getAsString())
              .setSessionId(given.get("session_id").getAsString())
              .setUserId(given.get("user_id").getAsString())
              .setRequestId(given.get("request_id").getAsString())
              .build();
      Duration wait =
          given.has("wait_ms")
              ? Duration.ofMillis(given.get("wait_ms").getAsLong())
              : Asked.WAIT_DEFAULT;
      try {
        Map<String, Object> said = new HashMap<>();
        Asked asked =
            given.has("parts") ? readParts(client, request, wait, said) : client.ask(request, wait);
        List<String> turns = asked.turns().stream().map(Turn::getAgentId).toList();
        said.putAll(Map.of("text", asked.text(), "agent_id", asked.agentId(), "turns", turns));
        said.put("outcome", asked.outcome() == Asked.Outcome.NONE ? "" : asked.outcome().name());
        String cause = asked.cause().name().replace("ABANDON_CAUSE_", "");
        said.put("cause", cause.equals("UNSPECIFIED") ? "" : cause);
        said.putAll(Map.of("claimed", asked.claimed(), "replayed", asked.replayed()));
        said.put("notice", asked.notice());
        say(said);
      } catch (RuntimeException error) {
        String message = String.valueOf(error.getMessage());
        say(Map.of("error", message, "request_id", requestIdOf(error)));
      }
    }
  }

  private static String requestIdOf(RuntimeException error) {
    if (error instanceof NoAnswerYet late) {
      return late.requestId();
    }
    if (error instanceof NoInbox carried) {
      return carried.requestId();
    }
    return error instanceof RoutingException failed ? failed.requestId() : "";
  }

  /** Returns the whole answer, and puts what a user saw of it into said. */
  private static Asked readParts(
      RoutingClient client, RouteRequest request, Duration wait, Map<String, Object> said) {
    Map<String, String> texts = new LinkedHashMap<>();
    List<String> notes = new ArrayList<>();
    AtomicInteger count = new AtomicInteger();
    Asked asked =
        client.askParts(
            request,
            wait,
            part -> {
              if (part.isNote()) {
                notes.add(part.text());
              } else {
                String turn = part.requestId() + part.agentId();
                String before = part.replaces() ? "" : texts.getOrDefault(turn, "");
                texts.put(turn, before + part.text());
                count.incrementAndGet();
              }
            });
    List<String> shown = texts.values().stream().filter(text -> !text.isEmpty()).toList();
    said.put("shown", shown);
    said.put("notes", notes);
    said.put("in_parts", count.get() > shown.size());
    return asked;
  }
}
