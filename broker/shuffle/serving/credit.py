"""The credit of one receiver, as Flink's server keeps it. Pure.

Owned by the receiver's view, on its connection's processor. A credit is room for one data buffer at the receiver. Events need
none. After an event that blocks upstream, nothing is sent until the receiver resumes.

=========  =====================  =========================================================================
blocked    event                  what happens
=========  =====================  =========================================================================
no         add(n)                 credits += n
no         data sent              credits -= 1; only allowed with credits > 0
no         event sent             nothing; a blocking event sets blocked
yes        add(n)                 credits += n, nothing is sent
yes        resume                 blocked = no; with an initial credit of 0, credits = 0: such a receiver
                                  drops its unannounced credit too and asks again by the backlog
no         resume                 the same for the credits
=========  =====================  =========================================================================

A backlog is announced only to receivers that began with a credit of 0, and only while they have none; all others learn it from
the buffers that they get.
"""

from protocol.shuffle.data_type import IS_BLOCKING_UPSTREAM, IS_BUFFER


class Credit:
    __slots__ = ("blocked", "credits", "initial")

    def __init__(self, initial: int) -> None:
        assert initial >= 0
        self.initial = initial
        self.credits = initial
        self.blocked = False

    def add(self, credits: int) -> None:
        self.credits += credits

    def resume(self) -> None:
        if self.initial == 0:
            self.credits = 0
        self.blocked = False

    def may_send(self, data_type: int) -> bool:
        """Whether a buffer of this type may go now."""
        return not self.blocked and (self.credits > 0 or not IS_BUFFER[data_type])

    def take(self, data_type: int) -> bool:
        """``may_send``, and if so it counts as sent: a data buffer uses up a credit, a blocking event blocks."""
        if self.blocked:
            return False
        if IS_BUFFER[data_type]:
            if self.credits <= 0:
                return False
            self.credits -= 1
        elif IS_BLOCKING_UPSTREAM[data_type]:
            self.blocked = True
        return True

    @property
    def announces_backlog(self) -> bool:
        return self.initial == 0 and self.credits == 0 and not self.blocked
