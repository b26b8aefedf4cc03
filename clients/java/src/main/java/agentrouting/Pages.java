package agentrouting;

import java.util.ArrayDeque;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Queue;
import java.util.function.Function;

/**
 * Iterates over the entries of all pages, and loads a page when it is needed.
 *
 * @param <P> a page
 * @param <E> an entry
 */
final class Pages<P, E> implements Iterator<E> {
  private final Function<String, P> load;
  private final Function<P, List<E>> entries;
  private final Function<P, String> nextToken;
  private final Queue<E> loaded = new ArrayDeque<>();
  private String token = "";
  private boolean isLast;

  Pages(Function<String, P> load, Function<P, List<E>> entries, Function<P, String> nextToken) {
    this.load = load;
    this.entries = entries;
    this.nextToken = nextToken;
  }

  @Override
  public boolean hasNext() {
    while (loaded.isEmpty() && !isLast) {
      P page = load.apply(token);
      loaded.addAll(entries.apply(page));
      token = nextToken.apply(page);
      isLast = token.isEmpty();
    }
    return !loaded.isEmpty();
  }

  @Override
  public E next() {
    if (!hasNext()) {
      throw new NoSuchElementException("there are no more entries");
    }
    return loaded.remove();
  }
}
