"""A checker of transactions, after Elle (Kingsbury and Alvaro, 2020), for keys that are lists: whoever writes appends an element
that nobody else ever appends, and whoever reads gets the list from its beginning. So a read shows in which order the elements
came and who has written each, and transactions that contradict each other form a cycle in a graph.

What ``anomalies`` finds, with Adya's names:

| anomaly | means |
|---|---|
| duplicate | an element is in a list twice |
| unknown element | nobody has appended it |
| incompatible order | two reads of a key, neither of which begins with the other |
| internal | a transaction does not see what it has itself appended or read before |
| G1a, aborted read | a committed transaction has seen an element of an aborted one |
| G1b, intermediate read | a read ends between two elements that one transaction has appended |
| lost append | an element of a committed transaction is not in the last state of its key (``final``) |
| lost update | two committed transactions have read the same state of a key, and both have appended to it |
| G0, write cycle | two transactions have each written before the other (edges "ww") |
| G1c, circular information flow | ... each has read or overwritten what the other has written ("ww", "wr") |
| G2, anti-dependency cycle | ... or each has missed what the other has written ("rw", too) |

A transaction of which nobody has heard how it ended counts as committed if a committed one, or ``final``, has seen it.

Kafka promises neither an order of writes over several partitions nor a snapshot of them: producers hold no locks, and a consumer
that has read one partition may read the other one later. It may even get a part of a transaction, up to where another one is
open. And a transaction does not read what it has written. So a ``Model`` says what counts.

Tests: tests/test_elle.py.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import attrs

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"
_CYCLES = (("G0", {"ww"}), ("G1c", {"ww", "wr"}), ("G2", {"ww", "wr", "rw"}))

Key = Hashable
Element = Hashable


@attrs.frozen
class Model:
    """``edges``: of cycles. ``sees_own``: a transaction's reads have its own appends, too. ``whole``: a read has all or nothing
    of what a transaction has appended to the key."""

    edges: frozenset[str]
    sees_own: bool
    whole: bool


SERIALIZABLE = Model(frozenset({"ww", "wr", "rw"}), sees_own=True, whole=True)
KAFKA = Model(frozenset({"wr"}), sees_own=False, whole=False)


@attrs.frozen
class Append:
    key: Key
    element: Element


@attrs.frozen
class Read:
    """``elements``: all of the key's, from the first on, that a committed reader gets."""

    key: Key
    elements: tuple[Element, ...]


@attrs.frozen
class Txn:
    name: str
    fate: str
    operations: Sequence[Append | Read]

    def appended(self, key: Key) -> list[Element]:
        return [each.element for each in self.operations if isinstance(each, Append) and each.key == key]

    @property
    def reads(self) -> Iterator[Read]:
        return (each for each in self.operations if isinstance(each, Read))

    @property
    def appends(self) -> Iterator[Append]:
        return (each for each in self.operations if isinstance(each, Append))


@attrs.frozen
class Anomaly:
    kind: str
    what: str


def anomalies(
    transactions: Sequence[Txn],
    final: Mapping[Key, Sequence[Element]] | None = None,
    model: Model = SERIALIZABLE,
) -> list[Anomaly]:
    """``final``: the state of keys in the end, as far as it is known."""
    return _Check(transactions, final, model).run()


class _Check:
    def __init__(
        self, transactions: Sequence[Txn], final: Mapping[Key, Sequence[Element]] | None, model: Model
    ) -> None:
        self._final = final
        self._model = model
        self._writers = {(each.key, each.element): txn for txn in transactions for each in txn.appends}
        self._found: dict[Anomaly, None] = {}
        self._committed = self._resolved(transactions)
        self._order: dict[Key, tuple[Element, ...]] = {}  # the longest state of each key that anybody has seen

    def _resolved(self, transactions: Sequence[Txn]) -> list[Txn]:
        """Those that have committed, or must have."""
        committed = {txn.name: txn for txn in transactions if txn.fate == COMMITTED}
        names = {txn.name for txn in transactions}
        assert len(names) == len(transactions), "two transactions have one name"
        todo = [(read.key, read.elements) for txn in committed.values() for read in txn.reads]
        todo += [(key, tuple(elements)) for key, elements in (self._final or {}).items()]
        while todo:
            key, elements = todo.pop()
            for element in elements:
                writer = self._writers.get((key, element))
                if writer is not None and writer.fate == UNKNOWN and writer.name not in committed:
                    committed[writer.name] = writer
                    todo += [(read.key, read.elements) for read in writer.reads]
        return [txn for txn in transactions if txn.name in committed]

    def _report(self, kind: str, what: str) -> None:
        self._found[Anomaly(kind, what)] = None

    def run(self) -> list[Anomaly]:
        states = [(txn.name, read.key, self._others(txn, read)) for txn in self._committed for read in txn.reads]
        if self._final is not None:
            states += [("the end", key, tuple(elements)) for key, elements in self._final.items()]
        for who, key, elements in states:
            self._check_state(who, key, elements)
        for who, key, elements in states:
            self._check_order(who, key, elements)
        if self._model.sees_own:
            for txn in self._committed:
                self._check_internal(txn)
        if self._final is not None:
            self._check_lost()
        self._check_updates()
        self._check_cycles()
        return list(self._found)

    def _others(self, txn: Txn, read: Read) -> tuple[Element, ...]:
        """What a read has seen of others: all that comes before the transaction's own appends."""
        own = set(txn.appended(read.key))
        return tuple(element for element in read.elements if element not in own)

    def _check_state(self, who: str, key: Key, elements: tuple[Element, ...]) -> None:
        if len(set(elements)) != len(elements):
            twice = next(element for element in elements if elements.count(element) > 1)
            self._report("duplicate", f"{who} finds {twice!r} in {key!r} twice")
        for element in elements:
            writer = self._writers.get((key, element))
            if writer is None:
                self._report("unknown element", f"{who} finds {element!r} in {key!r}, which nobody has appended")
            elif writer.fate == ABORTED:
                self._report("G1a", f"{who} finds {element!r} in {key!r}, of {writer.name}, which has aborted")
        if elements and who != "the end" and self._model.whole:
            writer = self._writers.get((key, elements[-1]))
            if writer is not None and writer.appended(key)[-1] != elements[-1]:
                self._report("G1b", f"{who} finds {key!r} end with {elements[-1]!r}, in the middle of {writer.name}")

    def _check_order(self, who: str, key: Key, elements: tuple[Element, ...]) -> None:
        longest = self._order.get(key, ())
        shorter, longer = sorted((longest, elements), key=len)
        if longer[: len(shorter)] != shorter:
            self._report("incompatible order", f"{who} finds {key!r} in another order than somebody else")
        self._order[key] = longer

    def _check_internal(self, txn: Txn) -> None:
        seen: dict[Key, tuple[Element, ...]] = {}  # what it has read last, and appended since
        appended: dict[Key, list[Element]] = {}
        for each in txn.operations:
            own = appended.setdefault(each.key, [])
            if isinstance(each, Append):
                own.append(each.element)
                if each.key in seen:
                    seen[each.key] += (each.element,)
                continue
            expected = seen.get(each.key, each.elements)
            if each.elements != expected or (own and each.elements[-len(own) :] != tuple(own)):
                self._report("internal", f"{txn.name} does not find in {each.key!r} what it has seen or written itself")
            seen[each.key] = each.elements

    def _check_lost(self) -> None:
        assert self._final is not None
        there = {key: set(elements) for key, elements in self._final.items()}
        for txn in self._committed:
            for each in txn.appends:
                if each.key in there and each.element not in there[each.key]:
                    self._report("lost append", f"{each.element!r} of {txn.name} is not in {each.key!r} in the end")

    def _check_updates(self) -> None:
        read_first: dict[tuple[Key, tuple[Element, ...]], Txn] = {}
        for txn in self._committed:
            for key in {each.key: None for each in txn.appends}:
                state = next((self._others(txn, read) for read in txn.reads if read.key == key), None)
                if state is None:
                    continue
                other = read_first.setdefault((key, state), txn)
                if other is not txn:
                    self._report("lost update", f"{other.name} and {txn.name} have both changed the same {key!r}")

    # -- cycles -----------------------------------------------------------------------------------------------------------

    def _check_cycles(self) -> None:
        graph = self._graph()
        for kind, allowed in _CYCLES:
            allowed = allowed & self._model.edges
            within = {
                name: {other for other, kinds in others.items() if kinds & allowed} for name, others in graph.items()
            }
            together = [component for component in components(within) if len(component) > 1]
            for component in together:
                self._report(kind, f"{' and '.join(sorted(component))} come before each other")
            if together:
                return  # those that follow have these, too

    def _graph(self) -> dict[str, dict[str, set[str]]]:
        """For each transaction, those that come after it, and why."""
        graph: dict[str, dict[str, set[str]]] = {txn.name: {} for txn in self._committed}

        def edge(before: Txn | None, after: Txn | None, kind: str) -> None:
            if before is None or after is None or before is after:
                return
            if before.name in graph and after.name in graph:
                graph[before.name].setdefault(after.name, set()).add(kind)

        for key, elements in self._order.items():
            writers = [self._writers.get((key, element)) for element in elements]
            for before, after in pairwise(writers):
                edge(before, after, "ww")
        for txn in self._committed:
            for read in txn.reads:
                state = self._others(txn, read)
                for element in state if "ww" not in self._model.edges else state[-1:]:
                    edge(self._writers.get((read.key, element)), txn, "wr")
                for element in self._order.get(read.key, ())[len(state) :]:
                    writer = self._writers.get((read.key, element))
                    if writer is not txn:
                        edge(txn, writer, "rw")
                        break
        return graph


def components(graph: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """The strongly connected components (Tarjan's, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[set[str]] = []
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(sorted(graph[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, others = work[-1]
            for other in others:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(graph[other]))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: set[str] = set()
                    while node not in component:
                        top = stack.pop()
                        on_stack.remove(top)
                        component.add(top)
                    found.append(component)
    return found
