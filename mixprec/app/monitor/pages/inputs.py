"""Input elements; browsers may send anything, and invalid values are dropped here."""

from nicegui import helpers, ui

_LONGEST = 100_000  # characters of a text
_SELECTED = 1000  # rows of a table
_COUNT = 10**9


class _Checked:
    """An element whose handlers only get values that :meth:`accepts` allows; others have no effect.

    Our pages send only valid values, so that there is no user to notify.
    """

    def on(self, type, handler=None, *arguments, **keywords):
        if handler is not None:
            handler = self._checked(helpers.event_type_to_camel_case(type), handler)
        return super().on(type, handler, *arguments, **keywords)

    def _checked(self, kind, handler):
        def handle(event):
            if self.accepts(kind, event.args):
                return handler(event) if helpers.expects_arguments(handler) else handler()
            return None

        return handle

    def accepts(self, kind, sent):
        """Returns ``True`` if an event may have such arguments.

        Args:
            kind: kind of event, such as ``"update:modelValue"``.
            sent: any value of JSON.
        """
        return not kind.startswith("update:") or self.holds(sent)

    def holds(self, sent):
        """Returns ``True`` if the element may have this value."""
        return False


class Text(_Checked, ui.input):
    """A line of text."""

    def holds(self, sent):
        return sent is None or (isinstance(sent, str) and len(sent) <= _LONGEST)


class Lines(Text, ui.textarea):
    """Lines of text."""


class Number(_Checked, ui.number):
    """A number; its range is checked where it is used."""

    def holds(self, sent):
        if sent is None or sent == "":
            return True
        try:
            return type(sent) in (int, float, str) and abs(float(sent)) <= _COUNT
        except (ValueError, OverflowError):
            return False


class Choice(_Checked, ui.select):
    """One of some options, or several."""

    def holds(self, sent):
        if sent is None:
            return bool(self.multiple or self.props.get("clearable") or self.props.get("use-input"))
        if not self.multiple:
            return self._is_option(sent)
        return isinstance(sent, list) and len(sent) <= len(self._values) and all(map(self._is_option, sent))

    def _is_option(self, sent):
        return isinstance(sent, dict) and _is_whole(sent.get("value"), len(self._values) - 1)


class Toggle(_Checked, ui.toggle):
    """One of some options, side by side."""

    def holds(self, sent):
        return _is_whole(sent, len(self._values) - 1)


class Expansion(_Checked, ui.expansion):
    """Content that is shown when it is opened."""

    def holds(self, sent):
        return isinstance(sent, bool)


class Progress(_Checked, ui.linear_progress):
    """A bar; nothing comes from a browser."""


class Table(_Checked, ui.table):
    """A table. Selected rows are its own rows, never the contents that a browser sends."""

    def accepts(self, kind, sent):
        if kind == "request":
            return isinstance(sent, dict) and self.holds(sent.get("pagination"))
        if kind == "selection":
            return self._selects(sent)
        if kind == "update:fullscreen":
            return isinstance(sent, bool)
        return super().accepts(kind, sent)

    def holds(self, sent):
        """Whether this is a valid page and order of rows."""
        if not isinstance(sent, dict):
            return False
        names = [column["name"] for column in self.columns]
        return (
            (sent.get("sortBy") is None or sent["sortBy"] in names)
            and isinstance(sent.get("descending", False), (bool, type(None)))
            and all(_is_whole(sent.get(key, 0), _COUNT) for key in ("page", "rowsPerPage", "rowsNumber"))
            and len(sent) <= 5
        )

    def _selects(self, sent):
        if self.selection is None or not isinstance(sent, dict) or not isinstance(sent.get("keys"), list):
            return False
        keys = [key for key in sent["keys"] if isinstance(key, str)]
        new = {key for key in keys if key not in {row[self.row_key] for row in self.selected}}
        sent["keys"], sent["rows"] = keys, [row for row in self.rows if row[self.row_key] in new]
        return not sent.get("added") or len(self.selected) + len(sent["rows"]) <= _SELECTED


def _is_whole(value, most):
    return type(value) is int and 0 <= value <= most
