"""Random programs of work and copies on a device, for any :class:`mixprec.backends.copy_interface.Copies`."""

import random

STEPS = 40


class Program:
    """Makes arrays, changes them, lets them go and brings them back, each in its time.

    Args:
        copies: Copies.
        device: an object with

            - ``new(number)``: a new array that depends on a number, small and positive;
            - ``change(array, number)``: adds a number to an array, in place;
            - ``read(array)``: what the array is then, found when the program is done.
            - ``value(number)``: NumPy's array that ``new(number)`` is.
        seed: of the program.

    Attributes:
        read: list of ``(what was read, what it should be)``.
    """

    def __init__(self, copies, device, seed):
        self._copies, self._device, self._random = copies, device, random.Random(seed)
        self._here = []  # [array, value]
        self._leaving = []  # (array, value, slot, mark)
        self._away = []  # (slot, layout, value)
        self._coming = []  # (root, mark, layout, value)
        self.read = []

    def run(self):
        """Asks for everything."""
        steps = [self._make, self._change, self._leave, self._left, self._come, self._came, self._look]
        for _ in range(STEPS):
            self._random.choice(steps)()
        while self._leaving or self._away or self._coming:
            for step in (self._left, self._come, self._came):
                step()
        while self._here:
            self._look()
            self._here.pop()
        self._copies.join()

    def _some(self, among):
        return among.pop(self._random.randrange(len(among)))

    def _make(self):
        number = self._random.randint(1, 9)
        self._here.append([self._device.new(number), self._device.value(number)])

    def _change(self):
        if self._here:
            each = self._random.choice(self._here)
            number = self._random.randint(1, 9)
            self._device.change(each[0], number)
            each[1] = each[1] + number

    def _look(self):
        if self._here:
            array, value = self._random.choice(self._here)
            self.read.append((self._device.read(array), value))

    def _leave(self):
        if self._here:
            array, value = self._some(self._here)
            root = self._copies.root_of(array)
            slot = self._copies.take(self._copies.size_of(root))
            self._leaving.append((array, value, slot, self._copies.out(self._copies.token_of(root), slot)))

    def _left(self):
        """The array goes, or is changed: its copy stays what it was."""
        if self._leaving:
            array, value, slot, mark = self._some(self._leaving)
            self._copies.wait(mark)
            self._away.append((slot, self._copies.layout_of(array), value))
            if self._random.random() < 0.5:
                self._device.change(array, 1)
                self._here.append([array, value + 1])

    def _come(self):
        """The slot is given back at once, or is used once more."""
        if self._away:
            slot, layout, value = self._some(self._away)
            root, mark = self._copies.back(slot)
            self._coming.append((root, mark, layout, value))
            if self._random.random() < 0.3:
                self._away.append((slot, layout, value))
            else:
                self._copies.give(slot)

    def _came(self):
        if self._coming:
            root, mark, layout, value = self._some(self._coming)
            self._copies.wait(mark)
            self._here.append([self._copies.array_in(root, layout), value])
