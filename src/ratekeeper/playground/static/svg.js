// Makes and changes nodes.

const SPACE = "http://www.w3.org/2000/svg";

/** Make an SVG node. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Make an HTML node; what begins with "on" listens. */
export function html(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Change attributes, and only those that differ: sixty times a second that counts. */
export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const text = String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

/** Change a text if it differs. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Tell something to who hears the page, the same words again, too. */
export function tell(node, text) {
  node.replaceChildren(text);
}

/** Have exactly `count` children in a node, made by `make(index)`. */
export function pool(parent, count, make) {
  while (parent.childElementCount > count) parent.lastElementChild.remove();
  while (parent.childElementCount < count) parent.append(make(parent.childElementCount));
  return parent.children;
}
