package chat;

import agentrouting.v1.CompleteOutcome;
import agentrouting.v1.CompleteTurnRequest;
import agentrouting.v1.Dispatch;
import agentrouting.v1.FollowUpOutcome;
import agentrouting.v1.HandoffOutcome;
import agentrouting.v1.ProceedOutcome;
import com.google.protobuf.Duration;
import java.util.List;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The tax example's agents, as scripts: they need no model and no network. An agent gets a
 * dispatch, and returns its answer and how its turn ended, as the request that reports it; the
 * sender fills in the ids. A real one would call a model and report the same. The examples of the
 * other clients have the same agents, with the same texts.
 */
final class Agents {
  private static final double VAT_RATE = 0.21;
  private static final Pattern NUMBER = Pattern.compile("\\d[\\d.,]*");
  private static final Pattern DUE = words("when|due|deadline");
  private static final Pattern VAT = words("vat");

  private record Specialist(String agentId, Pattern words) {}

  /** The agent for a message, by terms in its text; the first match counts. */
  private static final List<Specialist> SPECIALISTS =
      List.of(
          new Specialist("filing", words("file it|file my|submit")),
          new Specialist("payroll", words("payroll|wages|employees?")),
          new Specialist("invoices", words("invoices?")),
          new Specialist("vat", VAT),
          new Specialist("income_tax", words("income tax|tax return|deduct\\w*")));

  private Agents() {}

  /** Returns the answer of a dispatch's agent. */
  static CompleteTurnRequest.Builder answer(Dispatch dispatch) {
    String text = dispatch.getText();
    return switch (dispatch.getAgent().getAgentId()) {
      case "coordinator" ->
          SPECIALISTS.stream()
              .filter(each -> each.words.matcher(text).find())
              .findFirst()
              .map(
                  each ->
                      handOver(
                          each.agentId,
                          "One moment, I bring in our specialist.",
                          "what the message is about"))
              .orElseGet(() -> say("Hello! Ask me about VAT, income tax, invoices or payroll."));
      case "vat" -> vat(text, dispatch.getLocked());
      case "income_tax" ->
          VAT.matcher(text).find() ? toVat() : ask("What did you earn last year, before tax?");
      case "invoices" ->
          VAT.matcher(text).find()
              ? toVat()
              : say("All your invoices are paid, but for F-1023, which is due next week.");
      case "payroll" -> say("Two employees: their payslips are ready for you to look at.");
      case "filing" ->
          CompleteTurnRequest.newBuilder()
              .setText("Filed. You get the receipt by mail.")
              .setComplete(CompleteOutcome.getDefaultInstance());
      default -> say("I am here, and have nothing to say.");
    };
  }

  /** Returns an agent's answer after its handoff was refused. */
  static CompleteTurnRequest.Builder afterRefusal(List<String> rules) {
    return say(
        rules.contains("entitled")
            ? "That needs the premium plan. Can I help with something else?"
            : "I cannot bring in that colleague now. Can I help you myself?");
  }

  private static CompleteTurnRequest.Builder vat(String text, boolean isLocked) {
    Matcher number = NUMBER.matcher(text);
    if (number.find()) {
      double vat = Double.parseDouble(number.group().replace(",", "")) * VAT_RATE;
      return say(String.format(Locale.ROOT, "That makes %.2f € of VAT.", vat));
    }
    if (DUE.matcher(text).find()) {
      return say("By the 20th after the quarter's end.");
    }
    return ask(
        isLocked
            ? "A number is all I need: what did you sell, without VAT?"
            : "What did you sell this quarter, without VAT?");
  }

  private static Pattern words(String alternatives) {
    return Pattern.compile("\\b(" + alternatives + ")\\b", Pattern.CASE_INSENSITIVE);
  }

  private static CompleteTurnRequest.Builder say(String text) {
    return CompleteTurnRequest.newBuilder()
        .setText(text)
        .setProceed(ProceedOutcome.getDefaultInstance());
  }

  private static CompleteTurnRequest.Builder ask(String text) {
    Duration tenMinutes = Duration.newBuilder().setSeconds(600).build();
    return CompleteTurnRequest.newBuilder()
        .setText(text)
        .setFollowUp(FollowUpOutcome.newBuilder().setTimeout(tenMinutes));
  }

  private static CompleteTurnRequest.Builder toVat() {
    return handOver("vat", "VAT is for a colleague of mine.", "VAT is for a colleague of mine.");
  }

  private static CompleteTurnRequest.Builder handOver(String agentId, String text, String reason) {
    return CompleteTurnRequest.newBuilder()
        .setText(text)
        .setHandoff(HandoffOutcome.newBuilder().setAgentId(agentId).setReason(reason));
  }
}
