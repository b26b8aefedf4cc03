package agentrouting;

import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.Writer;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;

/** The server of the scenario vectors, in a process of its own. */
final class VectorServer implements AutoCloseable {
  /** The project's own folder: Maven runs tests in this client's. */
  static final Path ROOT = Path.of("../..").toAbsolutePath().normalize();

  private final Process process;
  private final Writer input;
  private final BufferedReader output;
  private final String address;

  private VectorServer(Process process) throws IOException {
    this.process = process;
    input = process.outputWriter();
    output = process.inputReader();
    String line = output.readLine();
    if (line == null) {
      throw new IOException("the vector server has not started; what it says is above");
    }
    address = JsonParser.parseString(line).getAsJsonObject().get("address").getAsString();
  }

  static VectorServer start() throws IOException {
    String named = System.getenv("PYTHON");
    String python = named == null ? ROOT.resolve(".venv/bin/python").toString() : named;
    String script = ROOT.resolve("tests/clients/vector_server.py").toString();
    return new VectorServer(
        new ProcessBuilder(python, script)
            .redirectError(ProcessBuilder.Redirect.INHERIT)
            .start());
  }

  String address() {
    return address;
  }

  /** Makes the server change its connections, and waits until that has happened. */
  void obey(String word) throws IOException {
    input.write(word + "\n");
    input.flush();
    String said = output.readLine();
    if (!("ok " + word).equals(said)) {
      throw new IOException("the vector server said " + said);
    }
  }

  @Override
  public void close() throws IOException {
    input.close();
    try {
      if (!process.waitFor(30, TimeUnit.SECONDS)) {
        throw new IOException("the vector server does not end");
      }
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }
}
