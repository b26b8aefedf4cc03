package chat;

import agentrouting.v1.Agent;
import agentrouting.v1.Dispatch;
import agentrouting.v1.Suggestion;
import java.io.PrintStream;
import java.util.Locale;

/** Writes the chat to a terminal, or as plain text. */
final class Screen {
  private final PrintStream out;
  private final boolean isColored;

  Screen(PrintStream out, boolean isColored) {
    this.out = out;
    this.isColored = isColored;
  }

  void line(String text) {
    out.println(text);
    out.flush();
  }

  void prompt() {
    out.print("> ");
    out.flush();
  }

  String dim(String text) {
    return isColored ? "\033[2m" + text + "\033[22m" : text;
  }

  void reply(String text) {
    text.lines().forEach(line -> line("  " + line));
  }

  void handoff(Agent from, Agent to, String words) {
    line(dim("  ── " + name(from) + " → " + name(to) + " ──"));
    if (!words.isEmpty()) {
      line("  " + words);
    }
  }

  void agent(Dispatch dispatch, String text, boolean isDegraded) {
    if (text.isEmpty()) {
      return;
    }
    String reason = dispatch.getReason().name().replace("ROUTE_REASON_", "");
    String because =
        isDegraded
            ? " (offline: the last agent known answers)"
            : " " + reason.toLowerCase(Locale.ROOT).replace('_', ' ');
    line(badge(dispatch.getAgent()) + dim(because));
    line("  " + text);
  }

  void suggestion(Suggestion suggestion) {
    line("  " + suggestion.getText());
    suggestion.getOptionsList().forEach(option -> line("    • " + option.getLabel()));
  }

  /** Returns an agent's name on its own color. */
  private String badge(Agent agent) {
    if (!isColored || !agent.getColor().matches("#[0-9a-fA-F]{6}")) {
      return "[" + name(agent) + "]";
    }
    int color = Integer.parseInt(agent.getColor().substring(1), 16);
    return "\033[97;1;48;2;%d;%d;%dm %s \033[0m"
        .formatted(color >> 16, color >> 8 & 0xff, color & 0xff, name(agent));
  }

  private static String name(Agent agent) {
    return agent.getDisplayName().isEmpty() ? agent.getAgentId() : agent.getDisplayName();
  }
}
