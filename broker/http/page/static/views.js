// Which views there are. `key`: the letter after `g`; a view without one is reached from another, `within` which it stays.
// In `path`, null stands for any segment.

import { Events } from "./views/events.js";
import { Group } from "./views/group.js";
import { Groups } from "./views/groups.js";
import { Messages } from "./views/messages.js";
import { NotFound } from "./views/not_found.js";
import { Overview } from "./views/overview.js";
import { Reactor } from "./views/reactor.js";
import { Requests } from "./views/requests.js";
import { Settings } from "./views/settings.js";
import { Shuffle } from "./views/shuffle.js";
import { Subscriptions } from "./views/subscriptions.js";
import { Topic } from "./views/topic.js";
import { Topics } from "./views/topics.js";
import { Transactions } from "./views/transactions.js";

const top = (name, label, key, component, path = [name]) => ({
  name, label, key, component, path, within: name, title: () => label,
});

export const VIEWS = [
  top("overview", "Overview", "o", Overview, []),
  top("topics", "Topics", "t", Topics),
  top("groups", "Groups", "g", Groups),
  top("subscriptions", "Subscriptions", "u", Subscriptions),
  top("transactions", "Transactions", "x", Transactions),
  top("shuffle", "Shuffle", "f", Shuffle),
  top("reactor", "Reactor", "r", Reactor),
  top("requests", "Requests", "q", Requests),
  top("settings", "Settings", "s", Settings),
  top("events", "Events", "e", Events),
  { name: "topic", path: ["topics", null], within: "topics", component: Topic, title: ([, name]) => name },
  { name: "messages", path: ["topics", null, "messages"], within: "topics", component: Messages, title: ([, name]) => `Messages of ${name}` },
  { name: "group", path: ["groups", null], within: "groups", component: Group, title: ([, name]) => name },
];

const NOT_FOUND = { name: "not_found", within: null, component: NotFound, title: () => "Not found" };

export const viewOf = (segments) => VIEWS.find((view) => matches(view.path, segments)) ?? NOT_FOUND;

const matches = (path, segments) =>
  path.length === segments.length && path.every((part, index) => part === null || part === segments[index]);
