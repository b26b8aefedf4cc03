package agentrouting;

/**
 * A part of an answer, or a note.
 *
 * @param text what to append to the text of its turn, which requestId and agentId name
 * @param agentId who wrote it; empty for a command
 * @param requestId the request that it belongs to
 * @param isNote text is a note for the user while they wait, and not part of the answer
 * @param replaces text stands for everything of its turn so far; if it is empty, nothing of it counts
 */
public record AskedPart(
    String text, String agentId, String requestId, boolean isNote, boolean replaces) {}
