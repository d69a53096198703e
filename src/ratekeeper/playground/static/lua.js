// Splits Lua into pieces to color. It knows only what our scripts use: comments, strings, numbers and words.

const KEYWORDS = new Set(
  "and break do else elseif end false for function if in local nil not or repeat return then true until while".split(" "),
);
const PIECE = /(--[^\n]*)|('(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")|(\b\d+(?:\.\d+)?\b)|([A-Za-z_][\w]*)|([\s\S])/g;

/** Return the pieces of a script, in order: { kind, text }; kind is comment, string, number, keyword or plain. */
export function pieces(source) {
  const result = [];
  for (const [text, comment, string, number, word] of source.matchAll(PIECE)) {
    const isKeyword = word !== undefined && KEYWORDS.has(word);
    const kind = comment ? "comment" : string ? "string" : number ? "number" : isKeyword ? "keyword" : "plain";
    const last = result.at(-1);
    if (last?.kind === kind) last.text += text;
    else result.push({ kind, text });
  }
  return result;
}
