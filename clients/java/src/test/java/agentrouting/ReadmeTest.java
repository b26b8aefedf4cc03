package agentrouting;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import agentrouting.v1.CompleteTurnRequest;
import agentrouting.v1.CompleteTurnResponse;
import agentrouting.v1.FollowUpOutcome;
import agentrouting.v1.HandoffOutcome;
import agentrouting.v1.Initiator;
import agentrouting.v1.RouteRequest;
import agentrouting.v1.SetActiveAgentRequest;
import agentrouting.v1.WatchSessionRequest;
import com.google.protobuf.Duration;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The README's blocks, in its order, as one program against the tax example that it speaks of. */
class ReadmeTest {
  private static final Pattern BLOCK = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL);

  private final List<String> printed = new ArrayList<>();

  private void print(Object... words) {
    List<String> texts = new ArrayList<>();
    for (Object word : words) {
      texts.add(word.toString());
    }
    printed.add(String.join(" ", texts));
  }

  @Test
  void theBlocksAreThoseThatRun() throws IOException {
    String source = Files.readString(Path.of("src/test/java/agentrouting/ReadmeTest.java"));
    // Those of workers are run by tests/clients/test_workers.py.
    String examples =
        Files.readString(Path.of("examples/worker/DeskWorker.java"))
            + Files.readString(Path.of("examples/worker/DeskChat.java"));
    var blocks = BLOCK.matcher(Files.readString(Path.of("README.md"))).results().toList();
    assertTrue(blocks.size() >= 5, blocks.size() + " blocks");
    for (var block : blocks) {
      String code = block.group(1).replaceAll("(?m)^(?=.)", "    ");
      boolean isExample = examples.replaceAll("(?m)^ +", "").contains(code.replaceAll("(?m)^ +", ""));
      assertTrue(isExample || source.contains(code), "neither in ReadmeTest nor an example:\n" + code);
    }
  }

  @Test
  @Timeout(60)
  void theReadmeRunsAsItStands() throws Exception {
    String named = System.getenv("PYTHON");
    Path python =
        named == null ? VectorServer.ROOT.resolve(".venv/bin/python") : Path.of(named);
    Process server =
        new ProcessBuilder(
                python.resolveSibling("agent-routing").toString(),
                "serve",
                "--listen=127.0.0.1:0",
                "--store=memory:",
                "--log-level=error",
                "--agents=" + VectorServer.ROOT.resolve("routing_service/examples/tax.yaml"))
            .redirectError(ProcessBuilder.Redirect.INHERIT)
            .start();
    try {
      String line = String.valueOf(server.inputReader().readLine());
      assertTrue(line.startsWith("serving on "), line);
      readme(line.substring("serving on ".length()));
    } finally {
      server.destroyForcibly().waitFor();
    }
    assertEquals(
        List.of(
            "send to coordinator because NO_ACTIVE_AGENT : How much VAT do I owe this quarter?",
            "Our VAT specialist will help you.",
            "next: vat",
            "entitled - agent \"payroll\" requires plan:premium, which the user lacks",
            "revision 1 with 3 events",
            "revision 2 with 2 events",
            "revision 3 with 2 events",
            "coordinator coordinator"),
        printed);
  }

  private void readme(String address) {
    RoutingClient client = RoutingClient.to(address);

    RouteResult turn =
        client.route(
            RouteRequest.newBuilder()
                .setSessionId("chat-42")
                .setUserId("ana")
                .setText("How much VAT do I owe this quarter?")
                .setLocale("en")
                .setChannel("web")
                .build());
    turn.reply().ifPresent(reply -> print(reply.getText())); // a command's answer: show it at once
    turn.dispatch()
        .ifPresent(
            dispatch ->
                print("send to", turn.agentId().get(), "because", turn.reason(), ":", dispatch.getText()));

    CompleteTurnResponse answer =
        client.completeTurn(
            CompleteTurnRequest.newBuilder()
                .setSessionId("chat-42")
                .setUserId("ana")
                .setRequestId(turn.requestId())
                .setAgentId("coordinator")
                .setText("Our VAT specialist will help you.")
                .setHandoff(HandoffOutcome.newBuilder().setAgentId("vat").setReason("a VAT question"))
                .build());
    print(answer.getText()); // always for the user to see
    if (answer.hasNext()) {
      print("next:", answer.getNext().getAgent().getAgentId());
      client.completeTurn(
          CompleteTurnRequest.newBuilder()
              .setSessionId("chat-42")
              .setUserId("ana")
              .setRequestId(answer.getNext().getRequestId())
              .setAgentId("vat")
              .setText("What did you sell, without VAT?")
              .setFollowUp(
                  FollowUpOutcome.newBuilder()
                      .setTimeout(Duration.newBuilder().setSeconds(600)))
              .build());
    }

    try {
      client.setActiveAgent(
          SetActiveAgentRequest.newBuilder()
              .setSessionId("chat-42")
              .setUserId("ana")
              .setAgentId("payroll")
              .setInitiator(Initiator.INITIATOR_USER)
              .build());
    } catch (RoutingException.HandoffRefused refused) {
      for (Violation violation : refused.violations()) {
        print(violation.name(), "-", violation.detail());
      }
    }

    var request =
        WatchSessionRequest.newBuilder().setSessionId("chat-42").setUserId("ana").setAfterRevision(0);
    try (Watch watch = client.watchSession(request.build())) {
      for (var change : watch) {
        print("revision", change.getRevision(), "with", change.getEventsCount(), "events");
        if (change.getRevision() == 3) {
          break;
        }
      }
    }

    try (RouteStream stream = client.stream()) {
      CompletableFuture<RouteResult> one =
          stream.send(RouteRequest.newBuilder().setUserId("ana").setText("hello").build());
      CompletableFuture<RouteResult> two =
          stream.send(RouteRequest.newBuilder().setUserId("ben").setText("hola").build());
      print(one.join().agentId().get(), two.join().agentId().get());
    }

    client.close();
  }
}
