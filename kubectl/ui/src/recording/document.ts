/** The page as one HTML file: how the build makes it, and how a recording is saved. */

export const RECORDING = "hostloop.recording/v1";

export interface Parts {
  /** The content security policy, with the hashes of style and program. */
  policy: string;
  style: string;
  program: string;
  data: Data;
}

/** The JSON of a recording, or HTML that marks where one can be put. */
export type Data = { recording: string } | { place: string };

export function page({ policy, style, program, data }: Parts): string {
  const recording = "recording" in data
    ? `<script type="application/json" id="recording">${escapeJson(data.recording)}</script>`
    : data.place;
  return `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<title>hostloop</title>
<style id="style">${style}</style>
</head>
<body>
<div id="app"><p class="first">Loading…</p></div>
<noscript>This page needs JavaScript.</noscript>
${recording}
<script id="program">${program}</script>
</body>
</html>
`;
}

/** JSON that is safe between script tags. */
export function escapeJson(json: string): string {
  return json.replaceAll("<", "\\u003c").replaceAll("\u2028", "\\u2028").replaceAll("\u2029", "\\u2029");
}

/** The JSON of a recording. */
export function recordingJson(version: string, messages: readonly unknown[]): string {
  return JSON.stringify({ recording: RECORDING, version, messages });
}
