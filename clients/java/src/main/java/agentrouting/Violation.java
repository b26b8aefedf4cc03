package agentrouting;

/**
 * A bad field, or a rule that refused.
 *
 * @param name the field's path ("items[2].uri") or the rule's name ("entitled")
 * @param subject what the rule refused, such as the target's agent id; empty for a field
 * @param detail what is wrong, with which value, and what to do
 */
public record Violation(String name, String subject, String detail) {}
