package agentrouting;

import static org.junit.jupiter.api.Assertions.assertFalse;

import agentrouting.v1.AddNoteRequest;
import agentrouting.v1.CancelTaskRequest;
import agentrouting.v1.ClaimTurnRequest;
import agentrouting.v1.ClearActiveAgentRequest;
import agentrouting.v1.CompleteTurnRequest;
import agentrouting.v1.KeepTurnRequest;
import agentrouting.v1.ListAgentsRequest;
import agentrouting.v1.ListNotesRequest;
import agentrouting.v1.ListTasksRequest;
import agentrouting.v1.ListTurnsRequest;
import agentrouting.v1.ListWaitingRequest;
import agentrouting.v1.ReleaseTurnRequest;
import agentrouting.v1.ReportDegradedRequest;
import agentrouting.v1.ResumeTaskRequest;
import agentrouting.v1.RouteRequest;
import agentrouting.v1.SetActiveAgentRequest;
import agentrouting.v1.StatusRequest;
import agentrouting.v1.WatchSessionRequest;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.util.JsonFormat;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.BiFunction;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/**
 * Replays the scenarios that all clients share against a real server: tests/clients/vectors/README.md
 * says what each part of them means.
 */
class VectorsTest {
  private static final Duration STEP_TIMEOUT = Duration.ofSeconds(30);
  private static final long EVENTUALLY_PAUSE_MS = 50;
  private static final Pattern VARIABLE = Pattern.compile("\\$\\{([^}]+)\\}");

  private static VectorServer server;

  @BeforeAll
  static void startServer() throws IOException {
    server = VectorServer.start();
  }

  @AfterAll
  static void stopServer() throws Exception {
    server.close();
  }

  @TestFactory
  Stream<DynamicTest> scenarios() throws IOException {
    List<DynamicTest> tests = new ArrayList<>();
    try (var files = Files.list(VectorServer.ROOT.resolve("tests/clients/vectors"))) {
      for (Path file : files.sorted().toList()) {
        String name = file.getFileName().toString();
        if (!name.endsWith(".json") || name.equals("schema.json")) {
          continue;
        }
        JsonObject vectors = JsonParser.parseString(Files.readString(file)).getAsJsonObject();
        for (JsonElement each : vectors.getAsJsonArray("scenarios")) {
          JsonObject scenario = each.getAsJsonObject();
          String title = name.replace(".json", "/") + scenario.get("name").getAsString();
          tests.add(DynamicTest.dynamicTest(title, () -> new Playing(scenario).play()));
        }
      }
    }
    return tests.stream();
  }

  @Test
  void whatIsNotLikeItIsFound() {
    // A comparison that lets everything pass would make all of this worth nothing.
    String[][] pairs = {
      {"{'a': 1}", "{'a': 2}"},
      {"{'a': null}", "{'a': ''}"},
      {"{'a': [1]}", "{'a': [1, 2]}"},
      {"{'a': [1]}", "{}"},
      {"{'a': {'b': 1}}", "{'a': 'b'}"},
      {"{'a': {'$present': true}}", "{}"},
      {"{'a': {'$contains': 'x'}}", "{'a': 'y'}"},
      {"{'a': {'$length': 1}}", "{'a': []}"},
      {"{'a': {'$includes': [1, 3]}}", "{'a': [1, 2]}"},
      {"{'a': {'$uuid': 7}}", "{'a': '0198a6c0-0000-4000-8000-000000000001'}"},
      {"{'a': {'$not': 'x'}}", "{'a': 'x'}"},
    };
    for (String[] pair : pairs) {
      assertFalse(isLike(JsonParser.parseString(pair[0]), JsonParser.parseString(pair[1])), pair[0]);
    }
  }

  /** What came of a step: an answer, or an error. */
  private record Result(
      JsonElement answer, RoutingException error, boolean replayed, boolean degraded) {
    static Result of(Message answer, boolean replayed) {
      return new Result(plain(answer), null, replayed, false);
    }

    static Result of(RouteResult turn) {
      return new Result(plain(turn.response()), null, turn.replayed(), turn.degraded());
    }

    static Result of(RoutingException error) {
      return new Result(JsonNull.INSTANCE, error, false, false);
    }
  }

  private static JsonElement plain(Message message) {
    try {
      return JsonParser.parseString(
          JsonFormat.printer().preservingProtoFieldNames().print(message));
    } catch (InvalidProtocolBufferException broken) {
      throw new AssertionError(broken);
    }
  }

  /** One scenario on its way. */
  private static final class Playing {
    private final JsonArray steps;
    private final RoutingClient client;
    private final Map<String, String> variables = new HashMap<>();
    private final Map<String, JsonElement> answers = new HashMap<>();
    private final Map<String, Watch> watches = new HashMap<>();
    private final Map<String, RouteStream> streams = new HashMap<>();

    Playing(JsonObject scenario) {
      steps = scenario.getAsJsonArray("steps");
      JsonObject settings =
          scenario.has("client") ? scenario.getAsJsonObject("client") : new JsonObject();
      RoutingClient.Builder builder =
          RoutingClient.builder(server.address()).timeout(seconds(settings, "timeout_s"));
      builder.tenant(text(settings, "tenant"));
      builder.fallback(Fallback.to(text(settings, "supervisor_id")));
      if (settings.has("fallback") && !settings.get("fallback").getAsBoolean()) {
        builder.withoutFallback();
      }
      if (settings.has("attempts_max")) {
        builder.retry(
            RetryPolicy.DEFAULT.withAttemptsMax(settings.get("attempts_max").getAsInt()));
      }
      client = builder.build();
    }

    void play() throws Exception {
      try {
        for (int number = 0; number < steps.size(); number++) {
          JsonObject step = steps.get(number).getAsJsonObject();
          try {
            take(step);
          } catch (RuntimeException | AssertionError failure) {
            // What this scenario disturbed must not fail the next ones.
            server.obey("back");
            throw new AssertionError("step " + number + ": " + failure.getMessage(), failure);
          }
        }
      } finally {
        watches.values().forEach(Watch::close);
        streams.values().forEach(RouteStream::close);
        client.close();
      }
    }

    private void take(JsonObject step) throws Exception {
      if (step.has("network")) {
        server.obey(text(step, "network"));
      } else if (step.has("watch")) {
        var request = read(step.get("request"), WatchSessionRequest.newBuilder()).build();
        watches.put(text(step, "watch"), client.watchSession(request));
      } else if (step.has("next")) {
        check(step, next(watches.get(text(step, "next"))));
      } else if (step.has("end")) {
        watches.remove(text(step, "end")).close();
      } else if (step.has("stream")) {
        stream(step);
      } else {
        call(step);
      }
    }

    private Result next(Watch watch) throws Exception {
      var coming =
          CompletableFuture.supplyAsync(
              () -> {
                try {
                  return watch.hasNext() ? Result.of(watch.next(), false) : null;
                } catch (RoutingException error) {
                  return Result.of(error);
                }
              });
      return coming.get(STEP_TIMEOUT.toSeconds(), TimeUnit.SECONDS);
    }

    private void stream(JsonObject step) {
      RouteStream stream = streams.computeIfAbsent(text(step, "stream"), name -> client.stream());
      List<CompletableFuture<RouteResult>> coming = new ArrayList<>();
      for (JsonElement message : step.getAsJsonArray("messages")) {
        var request = message.getAsJsonObject().get("request");
        coming.add(stream.send(read(request, RouteRequest.newBuilder()).build()));
      }
      for (int place = 0; place < coming.size(); place++) {
        Result came;
        try {
          came = Result.of(coming.get(place).join());
        } catch (CompletionException failure) {
          if (!(failure.getCause() instanceof RoutingException error)) {
            throw failure;
          }
          came = Result.of(error);
        }
        check(step.getAsJsonArray("messages").get(place).getAsJsonObject(), came);
      }
    }

    private void call(JsonObject step) throws Exception {
      if (step.has("at_once")) {
        int count = step.get("at_once").getAsInt();
        Callable<Result> one = () -> callOnce(step);
        var threads = Executors.newFixedThreadPool(count);
        try {
          for (Future<Result> came : threads.invokeAll(Collections.nCopies(count, one))) {
            check(step, came.get());
          }
        } finally {
          threads.shutdownNow();
        }
        return;
      }
      long late = System.nanoTime() + STEP_TIMEOUT.toNanos();
      while (true) {
        Result came = callOnce(step);
        boolean isAway =
            came.degraded || came.error instanceof RoutingException.Unavailable;
        if (flag(step, "eventually") && isAway && System.nanoTime() < late) {
          TimeUnit.MILLISECONDS.sleep(EVENTUALLY_PAUSE_MS);
          continue;
        }
        if (came.error == null && came.replayed != flag(step, "replayed")) {
          throw new AssertionError("replayed: expected " + flag(step, "replayed"));
        }
        check(step, came);
        return;
      }
    }

    private Result callOnce(JsonObject step) {
      long begun = System.nanoTime();
      Result came = answer(step);
      double took = (System.nanoTime() - begun) / 1e9;
      if (step.has("within_s") && took > step.get("within_s").getAsDouble()) {
        throw new AssertionError("took " + took + " s, expected at most " + step.get("within_s"));
      }
      return came;
    }

    private Result answer(JsonObject step) {
      JsonElement request = step.get("request");
      CallInfo info = new CallInfo().withTimeout(seconds(step, "timeout_s"));
      if (!step.has("timeout_s")) {
        info = new CallInfo();
      }
      boolean isAll = step.has("pages");
      try {
        return switch (text(step, "rpc")) {
          case "Route" -> Result.of(client.route(read(request, RouteRequest.newBuilder()).build(), info));
          case "SetActiveAgent" ->
              with(read(request, SetActiveAgentRequest.newBuilder()).build(), client::setActiveAgent, info);
          case "CancelTask" ->
              with(read(request, CancelTaskRequest.newBuilder()).build(), client::cancelTask, info);
          case "ClearActiveAgent" ->
              with(read(request, ClearActiveAgentRequest.newBuilder()).build(), client::clearActiveAgent, info);
          case "Status" -> with(read(request, StatusRequest.newBuilder()).build(), client::status, info);
          case "CompleteTurn" ->
              with(read(request, CompleteTurnRequest.newBuilder()).build(), client::completeTurn, info);
          case "ResumeTask" ->
              with(read(request, ResumeTaskRequest.newBuilder()).build(), client::resumeTask, info);
          case "ReportDegraded" ->
              with(read(request, ReportDegradedRequest.newBuilder()).build(), client::reportDegraded, info);
          case "ListAgents" ->
              with(read(request, ListAgentsRequest.newBuilder()).build(), client::listAgents, info);
          case "ListTasks" -> {
            var made = read(request, ListTasksRequest.newBuilder()).build();
            yield isAll ? all("tasks", client.allTasks(made)) : with(made, client::listTasks, info);
          }
          case "ListTurns" -> {
            var made = read(request, ListTurnsRequest.newBuilder()).build();
            yield isAll ? all("turns", client.allTurns(made)) : with(made, client::listTurns, info);
          }
          case "ListWaiting" -> {
            var made = read(request, ListWaitingRequest.newBuilder()).build();
            yield isAll ? all("entries", client.allWaiting(made)) : with(made, client::listWaiting, info);
          }
          case "ClaimTurn" ->
              with(read(request, ClaimTurnRequest.newBuilder()).build(), client::claimTurn, info);
          case "ReleaseTurn" ->
              with(read(request, ReleaseTurnRequest.newBuilder()).build(), client::releaseTurn, info);
          case "KeepTurn" ->
              with(read(request, KeepTurnRequest.newBuilder()).build(), client::say, info);
          case "AddNote" ->
              with(read(request, AddNoteRequest.newBuilder()).build(), client::addNote, info);
          case "ListNotes" ->
              with(read(request, ListNotesRequest.newBuilder()).build(), client::listNotes, info);
          default -> throw new AssertionError("no such step: " + step);
        };
      } catch (RoutingException error) {
        return Result.of(error);
      }
    }

    private static <Q, A extends Message> Result with(
        Q request, BiFunction<Q, CallInfo, A> method, CallInfo info) {
      A answer = method.apply(request, info);
      return Result.of(answer, info.replayed());
    }

    private static Result all(String name, Iterable<? extends Message> entries) {
      JsonArray listed = new JsonArray();
      entries.forEach(entry -> listed.add(plain(entry)));
      JsonObject answer = new JsonObject();
      answer.add(name, listed);
      return new Result(answer, null, false, false);
    }

    /** Holds a result against what the step expects. */
    private void check(JsonObject step, Result came) {
      if (came.error != null) {
        if (!step.has("error")) {
          throw new AssertionError("failed: " + came.error, came.error);
        }
        compare(filled(step.get("error")), asJson(came.error), "error");
        return;
      }
      if (step.has("error")) {
        throw new AssertionError("expected " + step.get("error") + ", got " + came.answer);
      }
      if (came.degraded != flag(step, "degraded")) {
        throw new AssertionError("degraded: expected " + flag(step, "degraded"));
      }
      compare(filled(step.get("answer")), came.answer, "answer");
      if (step.has("same_as") && !answers.get(text(step, "same_as")).equals(came.answer)) {
        throw new AssertionError(
            "not the first answer " + answers.get(text(step, "same_as")) + " but " + came.answer);
      }
      answers.put(text(step, "name"), came.answer);
      if (step.has("capture")) {
        for (var each : step.getAsJsonObject("capture").entrySet()) {
          variables.put(each.getKey(), atPath(came.answer, each.getValue().getAsString()));
        }
      }
    }

    private <B extends Message.Builder> B read(JsonElement request, B builder) {
      try {
        JsonFormat.parser().merge(filled(request).toString(), builder);
        return builder;
      } catch (InvalidProtocolBufferException broken) {
        throw new AssertionError(broken);
      }
    }

    /** Returns a part of a vector with its variables filled in. */
    private JsonElement filled(JsonElement value) {
      if (value.isJsonObject()) {
        JsonObject made = new JsonObject();
        value.getAsJsonObject().entrySet().forEach(each -> made.add(each.getKey(), filled(each.getValue())));
        return made;
      }
      if (value.isJsonArray()) {
        JsonArray made = new JsonArray();
        value.getAsJsonArray().forEach(each -> made.add(filled(each)));
        return made;
      }
      if (value.isJsonPrimitive() && value.getAsJsonPrimitive().isString()) {
        return new JsonPrimitive(
            VARIABLE
                .matcher(value.getAsString())
                .replaceAll(found -> Matcher.quoteReplacement(variable(found.group(1)))));
      }
      return value;
    }

    private String variable(String name) {
      return variables.computeIfAbsent(
          name,
          missing -> {
            String[] parts = missing.split(":", 2);
            return switch (parts[0]) {
              case "uuid" -> Ids.newUuid7();
              case "id" -> "vector-" + Ids.newUuid7();
              case "x" -> "x".repeat(Integer.parseInt(parts[1]));
              default -> throw new AssertionError("nothing has captured " + missing);
            };
          });
    }
  }

  private static JsonObject asJson(RoutingException error) {
    JsonObject made = new JsonObject();
    made.addProperty("code", error.code().name());
    made.addProperty("reason", error.reason());
    made.addProperty("message", error.getMessage());
    made.addProperty("request_id", error.requestId());
    made.addProperty("session_id", error.sessionId());
    JsonObject metadata = new JsonObject();
    error.metadata().forEach(metadata::addProperty);
    made.add("metadata", metadata);
    JsonArray violations = new JsonArray();
    for (Violation each : error.violations()) {
      JsonObject violation = new JsonObject();
      violation.addProperty("name", each.name());
      violation.addProperty("subject", each.subject());
      violation.addProperty("detail", each.detail());
      violations.add(violation);
    }
    made.add("violations", violations);
    return made;
  }

  private static String atPath(JsonElement value, String path) {
    for (String part : path.split("\\.")) {
      value =
          value.isJsonArray()
              ? value.getAsJsonArray().get(Integer.parseInt(part))
              : value.getAsJsonObject().get(part);
    }
    return value.getAsString();
  }

  /** Compares a result with the expected one; the error says where it differs. */
  static void compare(JsonElement expected, JsonElement actual, String at) {
    boolean isLike;
    JsonElement found = actual == null ? JsonNull.INSTANCE : actual;
    if (expected.isJsonObject() && isMatcher(expected.getAsJsonObject())) {
      var matcher = expected.getAsJsonObject().entrySet().iterator().next();
      isLike = matches(matcher.getKey(), matcher.getValue(), found);
    } else if (expected.isJsonObject()) {
      isLike = found.isJsonObject();
      if (isLike) {
        for (var each : expected.getAsJsonObject().entrySet()) {
          compare(each.getValue(), found.getAsJsonObject().get(each.getKey()), at + "." + each.getKey());
        }
      }
    } else if (expected.isJsonArray()) {
      JsonArray elements = found.isJsonArray() ? found.getAsJsonArray() : new JsonArray();
      isLike = elements.size() == expected.getAsJsonArray().size();
      for (int place = 0; isLike && place < elements.size(); place++) {
        compare(expected.getAsJsonArray().get(place), elements.get(place), at + "." + place);
      }
    } else {
      isLike = expected.equals(found);
    }
    if (!isLike) {
      throw new AssertionError(at + ": expected " + expected + ", got " + found);
    }
  }

  private static boolean isMatcher(JsonObject expected) {
    return expected.size() == 1 && expected.keySet().iterator().next().startsWith("$");
  }

  private static boolean matches(String matcher, JsonElement argument, JsonElement actual) {
    boolean isText = actual.isJsonPrimitive() && actual.getAsJsonPrimitive().isString();
    JsonArray elements = actual.isJsonArray() ? actual.getAsJsonArray() : new JsonArray();
    return switch (matcher) {
      case "$present" -> !actual.isJsonNull();
      case "$contains" -> isText && actual.getAsString().contains(argument.getAsString());
      case "$length" -> elements.size() == argument.getAsInt();
      case "$uuid" -> isText && UUID.fromString(actual.getAsString()).version() == argument.getAsInt();
      case "$not" -> !argument.equals(actual);
      case "$includes" ->
          argument.getAsJsonArray().asList().stream()
              .allMatch(part -> elements.asList().stream().anyMatch(each -> isLike(part, each)));
      default -> throw new AssertionError("no such matcher: " + matcher);
    };
  }

  private static boolean isLike(JsonElement expected, JsonElement actual) {
    try {
      compare(expected, actual, "");
      return true;
    } catch (AssertionError differs) {
      return false;
    }
  }

  private static String text(JsonObject from, String name) {
    return from.has(name) ? from.get(name).getAsString() : "";
  }

  private static boolean flag(JsonObject from, String name) {
    return from.has(name) && from.get(name).getAsBoolean();
  }

  private static Duration seconds(JsonObject from, String name) {
    return from.has(name)
        ? Duration.ofMillis((long) (from.get(name).getAsDouble() * 1000))
        : STEP_TIMEOUT;
  }
}
