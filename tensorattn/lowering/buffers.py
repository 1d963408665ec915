"""Where the registers of a loop lie in memory, so that a round takes no fresh memory for what is large.

Fresh pages cost as much as a pass over them. Therefore a step that works entry by entry writes over an operand that
dies there, and every other large result goes to a `Room`, made once before the loop and shared by what is never alive
together. Whoever runs the kernel may ignore any of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Cast, Contract, Fold, IfFinite, Instruction, Stream, Weigh
from tensorattn.lowering.liveness import makes, reads
from tensorattn.lowering.views import is_view, viewed
from tensorattn.parts import Literal, Register, Summand

# The functions of `Apply` that a back end can let write into given memory.
INTO = frozenset(
    "add subtract multiply divide maximum minimum exp exp2 log tanh sqrt abs sin cos negate reciprocal"
    " less_equal greater_equal less greater equal not_equal and or not select".split()
)

UNARY = frozenset("exp exp2 log tanh sqrt abs sin cos negate reciprocal not".split())


@dataclass(frozen=True, slots=True)
class Room:
    """Memory for registers that hold these axes, in any order, and this dtype."""

    number: int
    dtype: str
    axes: tuple[Index, ...]


@dataclass(slots=True)
class Places:
    """For registers by name: the room they are written to, or the operand they are written over."""

    rooms: list[Room] = field(default_factory=list)
    of: dict[str, Room | Register] = field(default_factory=dict)


def places(stream: Stream) -> Places:
    """The places of what a loop makes. What it carries on never lies in a room, as the next round writes there."""
    found = Places()
    steps = _Steps((*stream.body, *stream.merge), found, {})
    steps.carry([c.state for c in stream.carry], stream.merged)
    steps.keep({steps.of(s.part) for s in stream.stacked})  # copied at the end of the round
    steps.place()
    return found


class _Steps:
    """Instructions in order, with who shares memory with whom, and when each memory is used last."""

    def __init__(
        self, body: Sequence[Instruction], found: Places, free: dict[tuple[str, frozenset[Index]], list[Room]],
        around: _Steps | None = None, at: int = 0,
    ) -> None:  # fmt: skip
        self.body, self.found, self.free = body, found, free
        self.root: dict[str, str] = dict(around.root) if around else {}
        self.last: dict[str, int] = {}  # of roots
        self.new: set[str] = set()  # roots that may be written over: made here, or dying here, whole, by themselves
        if around is not None:
            self.new |= {root for root in around.new if around.last.get(root) == at}
        self.axes: dict[str, frozenset[Index]] = dict(around.axes) if around else {}  # of all that is made here
        self.lies: dict[str, Room] = {}  # roots in rooms
        self.ends: set[str] = set()  # roots that outlive the body: they lie in no room
        kept: set[str] = set()
        for at, instruction in enumerate(body):
            touched = [self.of(r) for r in reads(instruction)]
            shared = [self.of(r) for r in _sources(instruction)]
            kept.update(shared[1:])  # whatever it may be beside the first lives on with it
            for made in makes(instruction):
                self.root[made.name] = shared[0] if shared and is_view(instruction) else made.name
                touched.append(self.root[made.name])
                self.axes[made.name] = frozenset(made.axes)
            if isinstance(instruction, IfFinite):
                kept.update(shared)
            if _is_whole(instruction):
                self.new.update(made.name for made in makes(instruction))
            self.last.update(dict.fromkeys(touched, at))
        self.escape(kept)

    def of(self, register: Register) -> str:
        """The root of a register: whose memory it has."""
        name = register.name
        while self.root.get(name, name) != name:
            name = self.root[name]
        return name

    def keep(self, roots: set[str]) -> None:
        """They are needed after all."""
        self.last.update(dict.fromkeys(roots, len(self.body)))

    def escape(self, roots: set[str]) -> None:
        """They are needed after all, and after what comes in rooms then."""
        self.keep(roots)
        self.ends |= roots

    def carry(self, states: Sequence[Register], merged: Sequence[Register]) -> None:
        """The states of a loop are its own to write over where what they become has memory of its own."""
        ends = [self.of(register) for register in merged]
        self.escape(set(ends))
        for state, register, end in zip(states, merged, ends, strict=True):
            own = end in self.new and set(register.axes) == set(state.axes)
            if ends.count(end) == 1 and (own or end == state.name):
                self.new.add(state.name)

    def place(self) -> None:
        for at, instruction in enumerate(self.body):
            if isinstance(instruction, IfFinite):
                self._branch(instruction, at)
            elif (out := placed(instruction)) is not None and out.name not in self.found.of:
                self._place(instruction, out, at)
            self._release(at)

    def _place(self, instruction: Instruction, out: Register, at: int) -> None:
        """The result is written over an operand that dies here, else into a room."""
        ends = self.last.get(out.name, at)
        for operand in _alike(instruction, out) if out.axes else ():
            root = self.of(operand)
            same = [r for r in reads(instruction) if self.of(r) == root]
            if root not in self.new or self.last.get(root) != at or same != [operand]:
                continue
            if self.axes.get(root, frozenset(operand.axes)) != frozenset(
                operand.axes
            ):  # broadcast: no memory of its own
                continue
            if out.name in self.ends and root in self.lies:
                continue
            self.found.of[out.name] = operand
            self.root[out.name] = root
            self.ends.update({root} if out.name in self.ends else ())
            self.last[root] = ends
            return
        self._into_room(out)

    def _into_room(self, out: Register) -> None:
        if len(out.axes) < 2 or out.name in self.ends:
            return
        free = self.free.setdefault((out.dtype, frozenset(out.axes)), [])
        if free:
            room = free.pop()
        else:
            room = Room(len(self.found.rooms) + 1, out.dtype, out.axes)
            self.found.rooms.append(room)
        self.found.of[out.name] = self.lies[out.name] = room

    def _release(self, at: int) -> None:
        for root in [root for root in self.lies if self.last.get(root, at) == at]:
            room = self.lies.pop(root)
            self.free[room.dtype, frozenset(room.axes)].append(room)

    def _branch(self, branch: IfFinite, at: int) -> None:
        """The fast side has rooms of its own meanwhile, and may write over what dies with the branch.

        None is held ready for the side that is rarely taken.
        """
        if placed(branch.fast[-1]) is not None:
            self._into_room(branch.out)
        steps = _Steps(branch.fast, self.found, self.free, self, at)
        steps.escape({steps.of(branch.out)})
        steps.place()
        if isinstance(self.found.of.get(branch.out.name), Register):  # which the other side does not make
            del self.found.of[branch.out.name]


def _sources(instruction: Instruction) -> Iterator[Register]:
    """The registers that the result may share memory with."""
    if isinstance(instruction, IfFinite):
        for side in (instruction.fast, instruction.safe):
            steps = {i.out.name: i for i in side}  # type: ignore[union-attr]
            pending = [side[-1]]
            while pending:
                for source in _sources(pending.pop()):
                    if source.name in steps:
                        pending.append(steps[source.name])
                    else:
                        yield source
    elif is_view(instruction):
        yield viewed(instruction)
        if isinstance(instruction, Apply):
            yield from (r for r in instruction.arguments[2:] if isinstance(r, Register))


def _is_whole(instruction: Instruction) -> bool:
    """Whether its result is sure to be new memory that holds every axis (none is broadcast)."""
    match instruction:
        case Weigh():
            return True
        case IfFinite(fast=fast, safe=safe):
            return _is_whole(fast[-1]) and _is_whole(safe[-1])
        case Contract(out=out, a=a, b=b):
            return set(out.axes) <= {*a.axes, *b.axes}
        case Apply(out=out, arguments=arguments):
            held = {i for a in arguments if isinstance(a, Register) for i in a.axes}
            return not is_view(instruction) and set(out.axes) == held
        case Fold(out=out, source=source):
            return set(out.axes) < set(source.axes)
        case Cast(out=out, source=source):
            return out.dtype != source.dtype and set(out.axes) == set(source.axes)
    return False


def placed(instruction: Instruction) -> Register | None:
    """The result, where it can be written to given memory."""
    match instruction:
        case Weigh(out=out):
            return out
        case Contract(out=out) if out.dtype != "int64" and _is_whole(instruction):
            return out
        case Apply(out=out, function=function, arguments=arguments) if function in INTO and _is_whole(instruction):
            first = arguments[0]
            if function == "select":
                return out if _alike(instruction, out) else None
            bare = isinstance(first, Literal) and function not in ("add", "multiply", "maximum", "minimum")
            return None if bare or (len(arguments) != 2 and function not in UNARY) else out
    return None


def _alike(instruction: Instruction, out: Register) -> list[Register]:
    """The operands that the result can be written over, entry by entry."""
    match instruction:
        case Weigh(score=score):
            operands: tuple[object, ...] = (score,)
        case Contract(out=whole, a=a, b=b, added=None):
            operands = (a, b) if {*a.axes, *b.axes} == set(whole.axes) else ()
        case Contract(added=Summand(register=added)):  # which is added to in one pass
            operands = (added,)
        case Apply(function="select", arguments=arguments):
            operands = arguments[1:2]
        case Apply(arguments=arguments):
            operands = arguments
        case _:
            operands = ()
    return [o for o in operands if isinstance(o, Register) and o.dtype == out.dtype and set(o.axes) == set(out.axes)]
