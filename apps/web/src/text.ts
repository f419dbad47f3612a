// Text from others that a person decides about, made unambiguous: characters that hide or reorder are named.
export function exact(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\p{Co}\u2028\u2029\u115f\u1160\u3164\uffa0\u2800\ufe00-\ufe0f]/gu, (char) =>
    char === "\n" || char === "\t" ? char : `<U+${(char.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}>`,
  );
}

/** Strip colours and cursor movements from terminal output. */
export function plain(text: string): string {
  // eslint-disable-next-line no-control-regex
  return text.replace(/\u001b\[[0-9;?]*[ -/]*[@-~]|\u001b\][^\u0007\u001b]*(\u0007|\u001b\\)|\r(?=\n)/g, "");
}
