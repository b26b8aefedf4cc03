package agentrouting;

import java.text.Normalizer;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;

/**
 * Commands that the client understands while the service is away, and its replies to them. The names
 * and what counts as typing one are the service's (tests/clients/vectors/text).
 */
final class AwayCommands {
  /** A command in a message: its name in the service's table, and the text after it. */
  record AwayCommand(String name, String rest) {
    boolean leadsHome() {
      return name.equals("supervisor") || name.equals("reset");
    }
  }

  /** What is shown for a command, and its language. */
  record AwayReply(String text, String locale) {}

  private static final Map<String, String> COMMANDS =
      byName(
          Map.of(
              "supervisor",
              "supervisor supervisora back home menu exit quit leave main salir volver inicio regresar"
                  + " atras principal voltar sair",
              "reset",
              "reset restart reiniciar resetear recomecar resetar",
              "agents",
              "agents specialists agentes especialistas",
              "agent",
              "agent agente",
              "status",
              "status estado estatus situacao",
              "history",
              "history historial historia historico",
              "help",
              "help ayuda ajuda"));

  private static final int NAME_CHARACTERS_MAX = 64;
  private static final String PUNCTUATION = ".,;:!?…¡¿·~*\"'`´)]}»”’。，、！？；：-–—";
  private static final String TIGHT = ",;:!…¡¿–—，、！；：";
  private static final String SEPARATORS = ".,;:!?…-–—，、！？；：。";

  private static final Map<String, String> BACK_HOME =
      Map.of(
          "en", "You are back with the main assistant.",
          "es", "Vuelves a estar con el asistente principal.",
          "pt", "Você está de volta com o assistente principal.");
  private static final Map<String, String> NOT_NOW =
      Map.of(
          "en", "That is not possible right now. Please try again in a few minutes.",
          "es", "Ahora mismo no es posible. Inténtalo de nuevo en unos minutos.",
          "pt", "Isso não é possível agora. Tente de novo em alguns minutos.");

  private AwayCommands() {}

  /** Returns the command that a message is; empty for ordinary text. */
  static Optional<AwayCommand> parse(String message) {
    int[] text = message.codePoints().toArray();
    int start = skip(text, 0, "¿¡");
    if (start == text.length || text[start] != '/' && text[start] != '／') {
      return Optional.empty();
    }
    start++;
    int end = start;
    while (end < text.length && end - start <= NAME_CHARACTERS_MAX && isOfName(text[end])) {
      end++;
    }
    String name = COMMANDS.get(folded(text, start, end));
    String rest = afterName(text, end);
    if (name == null || rest == null) {
      return Optional.empty();
    }
    boolean isSaid = name.equals("agent") || rest.codePoints().anyMatch(AwayCommands::isAlnum);
    return Optional.of(new AwayCommand(name, isSaid ? rest : ""));
  }

  /** Returns what is shown for a command while the service is away. */
  static AwayReply reply(AwayCommand command, String locale) {
    Map<String, String> texts = command.leadsHome() ? BACK_HOME : NOT_NOW;
    String language = locale.split("[-_]", 2)[0].toLowerCase(Locale.ROOT);
    return texts.containsKey(language)
        ? new AwayReply(texts.get(language), language)
        : new AwayReply(texts.get("en"), "en");
  }

  private static Map<String, String> byName(Map<String, String> names) {
    Map<String, String> made = new HashMap<>();
    names.forEach(
        (command, all) -> {
          for (String name : all.split(" ")) {
            made.put(name, command);
          }
        });
    return made;
  }

  private static boolean isAlnum(int each) {
    return Character.isLetterOrDigit(each)
        || Character.getType(each) == Character.LETTER_NUMBER
        || Character.getType(each) == Character.OTHER_NUMBER;
  }

  private static boolean isUnseen(int each) {
    return Character.getType(each) == Character.FORMAT
        || each == 0x34f
        || each >= 0xfe00 && each <= 0xfe0f;
  }

  private static boolean isSpace(int each) {
    return Character.isWhitespace(each) || Character.isSpaceChar(each);
  }

  private static boolean isOfName(int each) {
    return isAlnum(each)
        || each == '_'
        || each == '-'
        || isUnseen(each)
        || Character.getType(each) == Character.NON_SPACING_MARK;
  }

  private static String folded(int[] text, int start, int end) {
    StringBuilder seen = new StringBuilder();
    for (int place = start; place < end; place++) {
      int each = text[place];
      if (each >= 0x2100 && each <= 0x214f) {
        return new String(text, start, end - start); // Signs that fold to letters, and are none.
      }
      if (!isUnseen(each)) {
        seen.appendCodePoint(each >= 0xff01 && each <= 0xff5e ? each - 0xfee0 : each);
      }
    }
    return Normalizer.normalize(seen, Normalizer.Form.NFD)
        .replaceAll("[\\u0300-\\u0303\\u0308\\u0327]", "")
        .toLowerCase(Locale.ROOT);
  }

  private static int skip(int[] text, int from, String also) {
    int place = from;
    while (place < text.length
        && (isSpace(text[place]) || isUnseen(text[place]) || also.indexOf(text[place]) >= 0)) {
      place++;
    }
    return place;
  }

  /** Returns what follows a name; null if the name goes on, as a path or a longer word does. */
  private static String afterName(int[] text, int from) {
    int place = from;
    while (place < text.length && (PUNCTUATION.indexOf(text[place]) >= 0 || isDecoration(text[place]))) {
      place++;
    }
    if (place < text.length && !isSpace(text[place])) {
      boolean isTight = place > from && TIGHT.indexOf(text[place - 1]) >= 0;
      return isTight && Character.isLetter(text[place]) ? textFrom(text, place) : null;
    }
    int start = skip(text, place, "");
    int end = start;
    while (end < text.length && SEPARATORS.indexOf(text[end]) >= 0) {
      end++;
    }
    boolean isSeparated = end > start && (end == text.length || isSpace(text[end]));
    return textFrom(text, isSeparated ? skip(text, end, "") : start);
  }

  private static boolean isDecoration(int each) {
    int type = Character.getType(each);
    return isUnseen(each) || type == Character.OTHER_SYMBOL || type == Character.MODIFIER_SYMBOL;
  }

  private static String textFrom(int[] text, int place) {
    return new String(text, place, text.length - place);
  }
}
