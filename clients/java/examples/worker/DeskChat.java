package worker;

import agentrouting.Asked;
import agentrouting.RoutingClient;
import agentrouting.v1.RouteRequest;
import java.util.List;

/** The frontend's half: asks the agents of DeskWorker, and shows their answers. */
final class DeskChat {
  private DeskChat() {}

  public static void main(String[] arguments) {
    String address = arguments.length > 0 ? arguments[0] : "127.0.0.1:50051";
    try (RoutingClient client = RoutingClient.to(address)) {
      for (String text : List.of("How much VAT do I owe?", "I don't know")) {
        RouteRequest message =
            RouteRequest.newBuilder()
                .setSessionId("chat-1")
                .setUserId("ana")
                .setText(text)
                .build();
        Asked answer = client.ask(message);
        System.out.println("ana: " + text + "\n" + answer.agentId() + ": " + answer.text());
      }
    }
  }
}
