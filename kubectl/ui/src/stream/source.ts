/** The stream of the person's program: Server-Sent Events, opened again when it breaks. */

export interface Sink {
  message(json: string): void;
  open(): void;
  /** The stream broke; it is opened again after a time in milliseconds. */
  cut(retry: number): void;
}

/** What this needs of the browser's `EventSource`. */
export interface Source {
  onopen: (() => void) | null;
  onmessage: ((event: { data: string }) => void) | null;
  onerror: (() => void) | null;
  close(): void;
}

const FIRST_RETRY = 500;
const LAST_RETRY = 10_000;

/** The delay before the next try: it doubles up to a limit. */
export function retryAfter(failures: number): number {
  return Math.min(LAST_RETRY, FIRST_RETRY * 2 ** Math.max(0, failures - 1));
}

/** Opens the stream, for as long as the page is open. */
export function connect(make: () => Source, sink: Sink, later: (run: () => void, ms: number) => void): void {
  let failures = 0;
  const open = () => {
    const source = make();
    source.onopen = () => {
      failures = 0;
      sink.open();
    };
    source.onmessage = (event) => sink.message(event.data);
    source.onerror = () => {
      source.onopen = source.onmessage = source.onerror = null;
      source.close();
      failures += 1;
      const retry = retryAfter(failures);
      sink.cut(retry);
      later(open, retry);
    };
  };
  open();
}
