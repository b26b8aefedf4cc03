package agentrouting;

import java.util.Locale;

/**
 * Takes handoff markers out of streamed text, so that a user who reads along never sees one flash.
 * Text is held back only while it may become a marker, or may dress one up. The service's own text,
 * in the answer to completeTurn, is the last word.
 *
 * <p>Filters one answer, in one thread. Feed it each token, show what it returns, then what {@link
 * #end} returns.
 */
public final class MarkerFilter {
  private static final String GAP = " \t\r\n\\*_`~\"'[";
  private static final String DRESS = "*_`~\"'({<«“";
  private static final String UNDRESS = "*_`~\"')}>»”";
  private static final String HELD = " \t\r\n\\" + DRESS;
  private static final String AFTER_UNCLOSED = " \t*_`~\"')}>|\\";
  private static final String WORD = ".:@=;+-_";
  private static final String SPACES =
      "\u00a0\u202f\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f";

  private static final int GAP_MAX = 40;
  private static final int NAME_MAX = 256;

  /** Of spaces, quotes and signs of emphasis that may stand in front of a marker. */
  private static final int HELD_MAX = 64;

  private static final int NO = -1;
  private static final int MAYBE = -2;

  private String text = ""; // Not shown yet.
  private char last; // The last character that was shown; 0: none.
  private String closers = ""; // What may still be around the last marker.
  private boolean isAfter;

  /** Returns what may be shown by now. */
  public String feed(String token) {
    text += token;
    return flow(false);
  }

  /** Returns the rest, once there are no more tokens. */
  public String end() {
    return flow(true);
  }

  private record Place(int start, int end) {}

  private String flow(boolean isEnd) {
    StringBuilder shown = new StringBuilder();
    while (true) {
      if (isAfter && !tidy(isEnd)) {
        return shown.toString();
      }
      String plain = alike(text);
      Place found = find(plain, isEnd);
      if (found.end < 0) {
        return shown.append(show(isEnd ? plain.length() : heldFrom(plain, found.start))).toString();
      }
      int dressed = found.start;
      while (dressed > 0
          && DRESS.indexOf(plain.charAt(dressed - 1)) >= 0
          && found.start - dressed < GAP_MAX) {
        dressed--;
      }
      StringBuilder closing = new StringBuilder();
      for (int place = found.start - 1; place >= dressed; place--) {
        closing.append(UNDRESS.charAt(DRESS.indexOf(plain.charAt(place))));
      }
      closers = closing.toString();
      while (dressed > 0 && " \t".indexOf(text.charAt(dressed - 1)) >= 0) {
        dressed--;
      }
      String rest = text.substring(found.end);
      shown.append(show(dressed));
      text = rest;
      isAfter = true;
    }
  }

  private String show(int count) {
    String out = text.substring(0, count);
    text = text.substring(count);
    if (count > 0) {
      last = out.charAt(count - 1);
    }
    return out;
  }

  /** Drops what is left of a marker's dress; false: that shows with the next token. */
  private boolean tidy(boolean isEnd) {
    int place = 0;
    String plain = alike(text);
    for (; place < plain.length(); place++) {
      char sign = plain.charAt(place);
      if (sign == ']' || sign == '\\') {
        continue;
      }
      if (closers.isEmpty() || sign != closers.charAt(0)) {
        break;
      }
      closers = closers.substring(1);
    }
    text = text.substring(place);
    plain = plain.substring(place);
    if (last == 0 || last == '\n') {
      int line = 0;
      while (line < plain.length() && " \t".indexOf(plain.charAt(line)) >= 0) {
        line++;
      }
      String rest = plain.substring(line);
      if ((rest.isEmpty() || rest.equals("\r")) && !isEnd) {
        return false;
      }
      int ends = rest.startsWith("\r\n") ? 2 : rest.startsWith("\n") ? 1 : 0;
      text = text.substring(line + ends);
    } else if (plain.isEmpty() && !isEnd) {
      return false;
    }
    isAfter = false;
    closers = "";
    return true;
  }

  /** Returns a text as long, with signs that mean the same written in one way. */
  private static String alike(String text) {
    StringBuilder plain = new StringBuilder(text);
    for (int place = 0; place < text.length(); place++) {
      char sign = text.charAt(place);
      if (sign >= 0xff01 && sign <= 0xff5e) {
        plain.setCharAt(place, (char) (sign - 0xfee0));
      } else if ("【〔⟦".indexOf(sign) >= 0) {
        plain.setCharAt(place, '[');
      } else if ("】〕⟧".indexOf(sign) >= 0) {
        plain.setCharAt(place, ']');
      } else if (SPACES.indexOf(sign) >= 0) {
        plain.setCharAt(place, ' ');
      }
    }
    return plain.toString();
  }

  /** Returns where a marker begins and ends; its end is MAYBE if more text decides, or NO. */
  private static Place find(String plain, boolean isEnd) {
    for (int at = plain.indexOf('['); at >= 0; at = plain.indexOf('[', at + 1)) {
      int end = markerEnd(plain, at, isEnd);
      if (end != NO) {
        int start = at;
        while (start > 0 && plain.charAt(start - 1) == '\\') {
          start--;
        }
        return new Place(start, end);
      }
    }
    return new Place(plain.length(), NO);
  }

  private static int markerEnd(String plain, int start, boolean isEnd) {
    int unknown = isEnd ? NO : MAYBE;
    int place = skip(plain, start + 1);
    for (String letters : new String[] {"handoff", "to"}) {
      int stop = Math.min(plain.length(), place + letters.length());
      String said = plain.substring(place, stop).toLowerCase(Locale.ROOT);
      if (!letters.startsWith(said)) {
        return NO;
      }
      if (said.length() < letters.length()) {
        return unknown;
      }
      place += letters.length();
      while (letters.equals("handoff")
          && place < plain.length()
          && "_\\ -".indexOf(plain.charAt(place)) >= 0) {
        place++;
      }
    }
    place = skip(plain, place);
    if (place >= plain.length()) {
      return unknown;
    }
    return ":=".indexOf(plain.charAt(place)) < 0 ? NO : nameEnd(plain, place + 1, isEnd);
  }

  private static int skip(String plain, int from) {
    int stop = Math.min(plain.length(), from + GAP_MAX);
    int place = from;
    while (place < stop && GAP.indexOf(plain.charAt(place)) >= 0) {
      place++;
    }
    return place;
  }

  /** Returns where a marker ends whose name begins at start, MAYBE if more text decides. */
  private static int nameEnd(String plain, int start, boolean isEnd) {
    int lineEnd = -1;
    int place = start;
    for (; place < plain.length(); place++) {
      char sign = plain.charAt(place);
      if (sign == ']') {
        return place + 1;
      }
      if (sign == '[') {
        break;
      }
      if (sign == '\r' || sign == '\n') {
        if (lineEnd >= 0 && !plain.substring(lineEnd, place).isBlank()) {
          break;
        }
        if (lineEnd < 0 && !plain.substring(start, place).isBlank()) {
          lineEnd = place;
        }
      }
      if (place - Math.max(start, lineEnd) >= NAME_MAX) {
        break;
      }
    }
    if (place >= plain.length() && !isEnd) {
      return MAYBE;
    }
    return unclosedEnd(plain, start, lineEnd >= 0 ? lineEnd : place);
  }

  /** Returns where the text goes on behind a marker without a bracket at its end. */
  private static int unclosedEnd(String plain, int start, int end) {
    int place = start;
    while (place < end && AFTER_UNCLOSED.indexOf(plain.charAt(place)) >= 0) {
      place++;
    }
    while (place < end
        && (Character.isLetterOrDigit(plain.charAt(place)) || WORD.indexOf(plain.charAt(place)) >= 0)) {
      place++;
    }
    int rest = place;
    while (rest < end && AFTER_UNCLOSED.indexOf(plain.charAt(rest)) >= 0) {
      rest++;
    }
    return rest == end ? end : place;
  }

  /** Returns from where a text is held back: a marker may begin at start, or behind its end. */
  private static int heldFrom(String plain, int start) {
    int place = start;
    while (place > 0 && start - place < HELD_MAX && HELD.indexOf(plain.charAt(place - 1)) >= 0) {
      place--;
    }
    return place;
  }
}
