// The entries of all pages of a list; a page is fetched when it is needed.

export async function* overPages<Page extends { nextPageToken: string }, Entry>(
  pageAt: (token: string) => Promise<Page>,
  entries: (page: Page) => readonly Entry[],
): AsyncGenerator<Entry, void, void> {
  let token = "";
  do {
    const page = await pageAt(token);
    yield* entries(page);
    token = page.nextPageToken;
  } while (token !== "");
}
