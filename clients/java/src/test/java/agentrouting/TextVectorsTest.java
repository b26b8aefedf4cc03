package agentrouting;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What all clients read in texts, as the service reads it. */
class TextVectorsTest {
  private static final Path TEXTS = Path.of("../../tests/clients/vectors/text");

  @Test
  void commandsAreReadAsTheServiceReadsThem() throws Exception {
    var cases =
        JsonParser.parseString(Files.readString(TEXTS.resolve("commands.json")))
            .getAsJsonObject()
            .getAsJsonArray("cases");
    assertTrue(cases.size() >= 60);
    for (JsonElement element : cases) {
      JsonObject each = element.getAsJsonObject();
      var found = AwayCommands.parse(each.get("text").getAsString());
      String expected =
          each.get("name").isJsonNull()
              ? "none"
              : each.get("name").getAsString() + " " + each.get("rest").getAsString();
      String actual = found.map(made -> made.name() + " " + made.rest()).orElse("none");
      assertEquals(expected, actual, each.toString());
    }
  }

  @Test
  void markersAreNeverShown() throws Exception {
    var cases =
        JsonParser.parseString(Files.readString(TEXTS.resolve("markers.json")))
            .getAsJsonObject()
            .getAsJsonArray("cases");
    assertTrue(cases.size() >= 200);
    for (JsonElement element : cases) {
      String text = element.getAsJsonObject().get("text").getAsString();
      String expected = element.getAsJsonObject().get("shown").getAsString();
      for (int size : new int[] {1, 2, 7, 10_000}) {
        MarkerFilter filter = new MarkerFilter();
        StringBuilder shown = new StringBuilder();
        for (int at = 0; at < text.length(); at += size) {
          shown.append(filter.feed(text.substring(at, Math.min(text.length(), at + size))));
        }
        assertEquals(expected, shown.append(filter.end()).toString(), text);
      }
    }
  }

  @Test
  void theHomeAgentIsKeptInFile(@TempDir Path folder) throws Exception {
    Path file = folder.resolve("home");
    var request = agentrouting.v1.ListAgentsRequest.getDefaultInstance();
    var answer =
        agentrouting.v1.ListAgentsResponse.newBuilder().setHomeAgentId("coordinator").build();
    new KnownAgents(Fallback.DEFAULT.withHomeFile(file)).learn(request, answer);
    assertEquals("coordinator", Files.readString(file).strip());
    var next = new KnownAgents(Fallback.DEFAULT.withHomeFile(file));
    assertTrue(next.mayDecide(agentrouting.v1.RouteRequest.newBuilder().setText("hello").build()));
  }
}
