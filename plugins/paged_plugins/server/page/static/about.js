// The settings in force, where each is from, and the plugins.

import { element, newKey, request } from "/page/api.js";

export class About {
  constructor() {
    this.rows = document.getElementById("settings-rows");
    this.find = document.getElementById("find-setting");
    this.changed = document.getElementById("changed-only");
    this.find.addEventListener("input", () => this.filter());
    this.changed.addEventListener("change", () => this.filter());
    this.load();
  }

  async load() {
    try {
      this.show(await (await request("/live/about")).json());
    } catch (failure) {
      if (failure.needsKey) {
        await newKey();
        this.load();
        return;
      }
      const row = element("tr");
      row.append(element("td", "error", failure.message));
      this.rows.replaceChildren(row);
    }
  }

  show({ settings, plugins, components }) {
    const isDefault = (each) => each.layer === "default";
    settings.sort((a, b) => isDefault(a) - isDefault(b));
    this.rows.replaceChildren(...settings.map((each) => {
      const row = element("tr", isDefault(each) ? "" : "changed");
      const [key, value, from] = [element("td"), element("td"), element("td")];
      key.append(element("code", "", each.key));
      value.append(element("code", "", each.value));
      from.append(element("span", "layer", each.layer), element("span", "muted", each.from));
      row.append(key, value, from);
      return row;
    }));
    document.getElementById("plugin-rows").replaceChildren(...plugins.map((plugin) => {
      const row = element("tr");
      const own = components.filter((each) => each.plugin === plugin.name);
      const status = plugin.reason ? `${plugin.status}: ${plugin.reason}` : plugin.status;
      const names = element("td", "muted", own.map((each) => `${each.slot}.${each.name}`).join(", ") || "none");
      row.append(element("td", "", plugin.name), element("td", "muted", `${plugin.distribution} ${plugin.version}`));
      row.append(element("td", plugin.status === "active" ? "" : "error", status), names);
      return row;
    }));
    this.filter();
  }

  filter() {
    const wanted = this.find.value.trim().toLowerCase();
    for (const row of this.rows.children) {
      const isChanged = row.classList.contains("changed");
      row.hidden = (this.changed.checked && !isChanged) || !row.textContent.toLowerCase().includes(wanted);
    }
  }
}
