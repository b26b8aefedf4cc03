package worker;

import agentrouting.Answers;
import agentrouting.RoutingClient;
import agentrouting.Worker;

/** Two agents of a help desk, in a process of their own. */
final class DeskWorker {
  private DeskWorker() {}

  public static void main(String[] arguments) {
    String address = arguments.length > 0 ? arguments[0] : "127.0.0.1:50051";
    try (RoutingClient client = RoutingClient.to(address)) {
      Worker worker = new Worker(client);

      worker.agent("front_desk", turn -> Answers.handOff("vat", "a VAT question"));

      worker.agent(
          "vat",
          turn ->
              turn.dispatch().getLocked()
                  ? Answers.say("You said: " + turn.text() + ". Let us look it up.")
                  : Answers.followUp("Monthly or quarterly?"));

      worker.run();
    }
  }
}
