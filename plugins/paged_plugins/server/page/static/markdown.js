// Markdown as nodes of the document. What is not known stays text, and nothing is read as HTML.

import { element } from "/page/api.js";

const DEEPEST = 12; // levels of quotations and lists; what is deeper stays text
const FENCE = /^ {0,3}(`{3,}|~{3,}) *([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?: (.*))?$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const COLUMNS = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;
const SPECIAL = /[\\`*_~[]|!\[|https?:\/\//g;
const LINK = /\[((?:[^[\]\\]|\\.)*)\]\(<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?: +"[^"]*")?\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]}*_]/y;
const WORD = /[\p{L}\p{N}]/u;

const starts = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);
const margin = (line) => line.length - line.trimStart().length;
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/);
const isTable = (line, next) =>
  line.includes("|") && COLUMNS.test(next ?? "") && cells(line).length === cells(next).length;

// Shows a text that grows: at once, and then as often as it costs little. `around` is given each change.
export class Rendered {
  constructor(box, around) {
    [this.box, this.around, this.timer, this.pause] = [box, around, 0, 0];
    box.classList.add("markdown");
  }

  show(text) {
    this.text = text;
    this.timer ||= setTimeout(() => this.flush(), this.pause);
  }

  flush() {
    clearTimeout(this.timer);
    this.timer = 0;
    const began = performance.now();
    this.around(() => this.box.replaceChildren(...blocks(this.text.split("\n"))));
    this.pause = Math.max(30, 8 * (performance.now() - began));
  }
}

function blocks(lines, depth = 0) {
  const made = [];
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    const [fence, heading] = [FENCE.exec(line), HEADING.exec(line)];
    if (!line.trim()) {
      at += 1;
    } else if (fence) {
      const end = lines.findIndex((each, place) => place > at && each.trim().startsWith(fence[1]) && !each.trim().replaceAll(fence[1][0], ""));
      const code = element("pre");
      code.tabIndex = 0;
      code.append(element("code", "", lines.slice(at + 1, end < 0 ? lines.length : end).join("\n")));
      made.push(code);
      at = end < 0 ? lines.length : end + 1;
    } else if (heading) {
      made.push(holding(`h${Math.min(6, heading[1].length + 3)}`, (heading[2] ?? "").replace(/ +#+ *$/, "")));
      at += 1;
    } else if (RULE.test(line)) {
      made.push(element("hr"));
      at += 1;
    } else if (QUOTE.test(line) && depth < DEEPEST) {
      const end = endOf(lines, at, (each) => QUOTE.test(each));
      const quote = element("blockquote");
      quote.append(...blocks(lines.slice(at, end).map((each) => each.replace(QUOTE, "")), depth + 1));
      made.push(quote);
      at = end;
    } else if (ITEM.test(line) && depth < DEEPEST) {
      at = list(lines, at, depth, made);
    } else if (isTable(line, lines[at + 1])) {
      const end = endOf(lines, at + 2, (each) => each.includes("|"));
      made.push(table(lines.slice(at, end)));
      at = end;
    } else {
      const end = endOf(lines, at + 1, (each, place) => each.trim() && !starts(each) && !ITEM.test(each) && !isTable(each, lines[place + 1]));
      made.push(holding("p", lines.slice(at, end).map((each) => each.trim()).join("\n")));
      at = end;
    }
  }
  return made;
}

function endOf(lines, at, holds) {
  while (at < lines.length && holds(lines[at], at)) at += 1;
  return at;
}

// Adds a list that begins at a line, and returns the line after it.
function list(lines, at, depth, made) {
  const [, space, mark] = ITEM.exec(lines[at]);
  const isOrdered = mark.length > 1;
  const items = element(isOrdered ? "ol" : "ul");
  if (isOrdered) items.start = Number.parseInt(mark, 10);
  for (;;) {
    const found = ITEM.exec(lines[at] ?? "");
    if (!found || found[1].length > space.length + 1 || found[2].length > 1 !== isOrdered || RULE.test(lines[at])) break;
    const own = [lines[at].slice(found[0].length)];
    const least = Math.min(found[0].length, found[1].length + 2);
    for (at += 1; at < lines.length; at += 1) {
      const next = lines[endOf(lines, at, (each) => !each.trim())];
      const belongs = next !== undefined && margin(next) >= least;
      const isLazy = lines[at].trim() && !ITEM.test(lines[at]) && !starts(lines[at]);
      if (!belongs && !isLazy) break;
      own.push(lines[at].slice(Math.min(margin(lines[at]), found[0].length)));
    }
    const item = element("li");
    const parts = blocks(own, depth + 1);
    if (parts[0]?.tagName === "P") parts.splice(0, 1, ...parts[0].childNodes);
    item.append(...parts);
    items.append(item);
    const next = endOf(lines, at, (each) => !each.trim());
    if (ITEM.test(lines[next] ?? "")) at = next;
  }
  made.push(items);
  return at;
}

function table([head, marks, ...rows]) {
  const isNumber = cells(marks).map((each) => each.trim().endsWith(":"));
  const line = (kind, each) => {
    const made = element("tr");
    cells(each).slice(0, isNumber.length).forEach((text, place) => {
      const cell = holding(kind, text.trim().replaceAll("\\|", "|"));
      if (isNumber[place]) cell.className = "num";
      made.append(cell);
    });
    return made;
  };
  const [box, made, top, body] = ["div", "table", "thead", "tbody"].map((tag) => element(tag));
  top.append(line("th", head));
  body.append(...rows.map((each) => line("td", each)));
  made.append(top, body);
  box.className = "scroll-x";
  box.tabIndex = 0;
  box.append(made);
  return box;
}

function holding(tag, text, depth = 0) {
  const made = element(tag);
  made.append(...inline(text, depth));
  return made;
}

function inline(text, depth) {
  const made = [];
  let [plain, at] = ["", 0];
  const add = (node) => {
    if (plain) made.push(plain);
    plain = "";
    made.push(node);
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const place = depth > DEEPEST ? text.length : SPECIAL.exec(text)?.index ?? text.length;
    plain += text.slice(at, place);
    at = place;
    if (at === text.length) break;
    const [node, end] = special(text, at, depth);
    if (node instanceof Node) add(node);
    else plain += node;
    at = end;
  }
  if (plain) made.push(plain);
  return made;
}

// Returns what begins at a place, a node or text, and where it ends.
function special(text, at, depth) {
  const mark = text[at];
  if (mark === "\\") return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? [text[at + 1], at + 2] : [mark, at + 1];
  if (mark === "[" || mark === "!" || mark === "h") {
    const pattern = mark === "h" ? ADDRESS : LINK;
    const begin = mark === "!" ? at + 1 : at; // an image is a link: nothing is loaded from elsewhere
    pattern.lastIndex = begin;
    const found = pattern.exec(text);
    const target = found?.[2] ?? found?.[0];
    if (!found || !/^(https?:\/\/|mailto:)/i.test(target)) return [mark, at + 1];
    const link = holding("a", found[1] || target, DEEPEST + 1);
    link.href = target;
    link.rel = "noopener noreferrer";
    link.target = "_blank";
    return [link, begin + found[0].length];
  }
  const run = text.slice(at).match(mark === "`" ? /^`+/ : /^(.)\1*/)[0];
  if (mark === "`") {
    let end = at + run.length;
    while ((end = text.indexOf(run, end)) >= 0) {
      const length = text.slice(end).match(/^`+/)[0].length;
      if (length === run.length) return [element("code", "", text.slice(at + length, end).replace(/^ (.*[^ ].*) $/s, "$1")), end + length];
      end += length;
    }
    return [run, at + run.length];
  }
  const size = mark === "~" ? 2 : Math.min(2, run.length);
  const opening = mark.repeat(size);
  const isInWord = mark === "_" && WORD.test(text[at - 1] ?? "");
  if (run.length >= size && run.length < 4 && !isInWord && /\S/.test(text[at + run.length] ?? "")) {
    const end = closing(text, at + size, opening);
    if (end >= 0) {
      const tag = mark === "~" ? "del" : size === 2 ? "strong" : "em";
      return [holding(tag, text.slice(at + size, end), depth + 1), end + size];
    }
  }
  return [run, at + run.length];
}

function closing(text, from, mark) {
  for (let end = text.indexOf(mark, from); end >= 0; ) {
    let last = end + mark.length;
    while (text[last] === mark[0]) last += 1;
    const length = last - end;
    const fits = length === mark.length || length === 3;
    const isInWord = mark[0] === "_" && WORD.test(text[last] ?? "");
    if (fits && end > from && /[^\s\\]/.test(text[end - 1]) && !isInWord) return last - mark.length;
    end = text.indexOf(mark, last);
  }
  return -1;
}
