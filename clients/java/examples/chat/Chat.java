package chat;

import agentrouting.Ids;
import agentrouting.RoutingClient;
import agentrouting.RoutingException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.logging.Level;
import java.util.logging.Logger;

/**
 * A chat in the terminal, with the tax example's agents as scripts.
 *
 * <pre>mvn -q test-compile exec:java -Dexec.args="--target 127.0.0.1:50051"</pre>
 *
 * Options: --target, --session, --user, --locale. Start the service with {@code make run}. Lines are
 * read until the input ends, so that a story can be piped in.
 */
public final class Chat {
  private static final Set<String> OPTIONS = Set.of("--target", "--session", "--user", "--locale");

  private Chat() {}

  /** Talks until the input ends. */
  public static void main(String[] arguments) throws IOException {
    Map<String, String> options = options(arguments);
    // The screen already shows that a turn is degraded.
    Logger.getLogger("agentrouting").setLevel(Level.SEVERE);
    String target = options.getOrDefault("--target", "127.0.0.1:50051");
    String session = options.getOrDefault("--session", "chat-" + Ids.newUuid7());
    boolean isTerminal = System.console() != null;
    boolean isColored = isTerminal && System.getenv("NO_COLOR") == null;
    PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    Screen screen = new Screen(out, isColored);
    var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    try (RoutingClient client = RoutingClient.to(target)) {
      String user = options.getOrDefault("--user", "ana");
      String locale = options.getOrDefault("--locale", "en");
      Conversation conversation = new Conversation(client, session, user, locale, screen);
      if (isTerminal) {
        screen.line(
            screen.dim("session " + session + " at " + target + "; /status, /agents, /supervisor"));
        screen.prompt();
      }
      for (String line = input.readLine(); line != null; line = input.readLine()) {
        String text = line.strip();
        if (!text.isEmpty()) {
          if (!isTerminal) {
            screen.line("> " + text);
          }
          try {
            conversation.say(text);
          } catch (RoutingException error) {
            screen.line("  " + error.getMessage());
          }
        }
        if (isTerminal) {
          screen.prompt();
        }
      }
    }
  }

  private static Map<String, String> options(String[] arguments) {
    Map<String, String> made = new HashMap<>();
    for (int place = 0; place < arguments.length; place += 2) {
      if (!OPTIONS.contains(arguments[place]) || place + 1 == arguments.length) {
        System.err.println("options: " + String.join(" ", OPTIONS) + ", each with a value");
        System.exit(2);
      }
      made.put(arguments[place], arguments[place + 1]);
    }
    return made;
  }
}
