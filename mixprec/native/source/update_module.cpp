// What Python calls of update.h: a table of parameters, whose arrays it holds until it is freed. It holds gradients
// from load() on until they are let go.
#include "arguments.h"
#include "kernels.h"
#include "module.h"

#include <cstdlib>
#include <cstring>

namespace native {
namespace {

constexpr const char *NAME = "mixprec.update_table";
constexpr long PIECE = 1 << 15, PIECES = 1 << 9;  // elements of a piece; pieces of a task of small parameters
constexpr int HELD = 3 + MOST_STATES;             // arrays of a parameter: gradient, parameter, master, states

struct Table {
    Work work;
    Py_buffer *held;  // HELD for each parameter; without an object where there is none
    char *shadows;
    long count;
    bool has_gradients;
    bool is_busy;  // while a call works on it without Python's lock, or may run Python's code
};

void free_table(Table *table) {
    for (long i = 0; table->held && i < table->count * HELD; ++i) PyBuffer_Release(&table->held[i]);
    free(table->held);
    free(table->shadows);
    free(table->work.updated);
    free(table->work.pieces);
    free(table->work.tasks);
    free(table);
}

void free_capsule(PyObject *capsule) { free_table(static_cast<Table *>(PyCapsule_GetPointer(capsule, NAME))); }

Table *table_of(PyObject *object) {
    auto *table = static_cast<Table *>(PyCapsule_GetPointer(object, NAME));
    if (table && table->is_busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread updates these parameters");
        return nullptr;
    }
    return table;
}

// Holds the buffer of an array; returns whether it has that size and one of the formats.
bool hold(PyObject *object, Py_buffer *buffer, long size, bool is_written, const char *formats, const char *what) {
    if (PyObject_GetBuffer(object, buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (is_written ? PyBUF_WRITABLE : 0)))
        return false;
    char format = format_of(*buffer);
    bool is_right = format && strchr(formats, format) && buffer->itemsize > 0 &&
                    (size < 0 || buffer->len / buffer->itemsize == size) &&
                    reinterpret_cast<uintptr_t>(buffer->buf) % buffer->itemsize == 0;
    if (!is_right) {
        if (size < 0)
            PyErr_Format(PyExc_ValueError, "the %s must be an aligned array in one of '%s'", what, formats);
        else
            PyErr_Format(PyExc_ValueError, "the %s must be an aligned array of %ld elements in one of '%s'", what, size,
                         formats);
        PyBuffer_Release(buffer);
        memset(buffer, 0, sizeof *buffer);
    }
    return is_right;
}

Dtype dtype_of(const Py_buffer &buffer) {
    char format = format_of(buffer);
    return format == 'f' ? FLOAT : format == 'e' ? HALF : BFLOAT;
}

int place_of(PyObject *name, const FormulaName *names) {
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, nullptr) : nullptr;
    for (int i = 0; text && names[i].name; ++i)
        if (!strcmp(text, names[i].name)) return i;
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "unknown formula %R", name);
    return -1;
}

// An entry is (rounded parameter or None, master, state, ...), flat arrays.
bool take_entry(Table *table, long number, PyObject *entry, int states) {
    if (!PyTuple_Check(entry) || PyTuple_Size(entry) != 2 + states) {
        PyErr_Format(PyExc_ValueError, "an entry must be a tuple of %d arrays", 2 + states);
        return false;
    }
    Updated &updated = table->work.updated[number];
    Py_buffer *held = table->held + number * HELD;
    if (!hold(PyTuple_GetItem(entry, 1), held + 2, -1, true, "f", "master")) return false;
    updated.master = static_cast<float *>(held[2].buf);
    updated.size = held[2].len / long(sizeof(float));
    if (PyTuple_GetItem(entry, 0) != Py_None) {
        if (!hold(PyTuple_GetItem(entry, 0), held + 1, updated.size, true, "eH", "parameter")) return false;
        updated.param = held[1].buf;
        updated.dtype = dtype_of(held[1]);
    }
    for (int i = 0; i < states; ++i) {
        if (!hold(PyTuple_GetItem(entry, 2 + i), held + 3 + i, updated.size, true, "f", "state")) return false;
        updated.states[i] = static_cast<float *>(held[3 + i].buf);
    }
    return true;
}

bool take_formulas(Work *work, PyObject *rule, PyObject *hooks) {
    work->rule = -1;
    if (rule != Py_None && (work->rule = place_of(rule, RULE_NAMES)) < 0) return false;
    if (!PyTuple_Check(hooks) || PyTuple_Size(hooks) > MOST_HOOKS) {
        PyErr_SetString(PyExc_ValueError, "hooks must be a short tuple of names");
        return false;
    }
    for (; work->hook_count < PyTuple_Size(hooks); ++work->hook_count) {
        int place = place_of(PyTuple_GetItem(hooks, work->hook_count), HOOK_NAMES);
        if (place < 0) return false;
        work->hooks[work->hook_count] = place;
    }
    return true;
}

int by_address(const void *one, const void *other) {
    auto a = static_cast<const Py_buffer *>(one)->buf, b = static_cast<const Py_buffer *>(other)->buf;
    return a < b ? -1 : a > b;
}

// Whether no two arrays that an update writes share memory; tasks may write them at the same time.
bool are_apart(const Table *table) {
    long count = 0;
    auto *arrays = static_cast<Py_buffer *>(malloc((table->count * HELD + 1) * sizeof(Py_buffer)));
    if (!arrays) {
        PyErr_NoMemory();
        return false;
    }
    for (long i = 0; i < table->count * HELD; ++i)
        if (table->held[i].len) arrays[count++] = table->held[i];
    qsort(arrays, count, sizeof *arrays, by_address);
    bool apart = true;
    for (long i = 0; apart && i + 1 < count; ++i)
        apart = static_cast<char *>(arrays[i].buf) + arrays[i].len <= arrays[i + 1].buf;
    free(arrays);
    if (!apart) PyErr_SetString(PyExc_ValueError, "two arrays of the table share memory");
    return apart;
}

// Copies the rounded parameters, and cuts the work into pieces and tasks; false if there is no memory.
bool prepare(Table *table) {
    Work &work = table->work;
    long pieces = 0, rounded = 0;
    for (long i = 0; i < table->count; ++i) {
        pieces += (work.updated[i].size + PIECE - 1) / PIECE;
        if (work.updated[i].param) rounded += work.updated[i].size;
    }
    table->shadows = static_cast<char *>(malloc(rounded * 2 + 1));
    work.pieces = static_cast<Piece *>(malloc((pieces + 1) * sizeof(Piece)));
    work.tasks = static_cast<long *>(malloc((pieces + 1) * sizeof(long)));
    if (!table->shadows || !work.pieces || !work.tasks) return false;
    char *shadow = table->shadows;
    Piece *piece = work.pieces;
    for (long i = 0; i < table->count; ++i) {
        Updated &updated = work.updated[i];
        if (updated.param && updated.size) {
            updated.shadow = memcpy(shadow, updated.param, updated.size * 2);
            shadow += updated.size * 2;
        }
        for (long first = 0; first < updated.size; first += PIECE)
            *piece++ = {i, first, first + PIECE < updated.size ? first + PIECE : updated.size};
    }
    work.tasks[0] = 0;
    long elements = 0;
    for (long i = 0; i < pieces; ++i) {
        elements += work.pieces[i].last - work.pieces[i].first;
        if (elements < PIECE && i + 1 - work.tasks[work.task_count] < PIECES && i + 1 < pieces) continue;
        work.tasks[++work.task_count] = i + 1;
        elements = 0;
    }
    return true;
}

PyObject *update_table(PyObject *, PyObject *const *given, Py_ssize_t count) {
    if (count != 3) return PyErr_Format(PyExc_TypeError, "update_table takes 3 arguments");
    PyObject *entries = PySequence_Tuple(given[2]);
    if (!entries) return nullptr;
    auto *table = static_cast<Table *>(calloc(1, sizeof(Table)));
    bool is_right = false;
    if (table) {
        table->count = PyTuple_Size(entries);
        table->held = static_cast<Py_buffer *>(calloc(table->count * HELD + 1, sizeof(Py_buffer)));
        table->work.updated = static_cast<Updated *>(calloc(table->count + 1, sizeof(Updated)));
        is_right = table->held && table->work.updated && take_formulas(&table->work, given[0], given[1]);
        int states = is_right && table->work.rule >= 0 ? RULE_NAMES[table->work.rule].states : 0;
        for (long i = 0; is_right && i < table->count; ++i)
            is_right = take_entry(table, i, PyTuple_GetItem(entries, i), states);
        is_right = is_right && are_apart(table) && prepare(table);
    }
    Py_DECREF(entries);
    PyObject *capsule = is_right ? PyCapsule_New(table, NAME, free_capsule) : nullptr;
    if (!capsule) {
        if (table) free_table(table);
        if (!PyErr_Occurred()) PyErr_NoMemory();
    }
    return capsule;
}

void forget(Table *table) {
    table->has_gradients = false;
    for (long i = 0; i < table->count; ++i) {
        table->work.updated[i].gradient = nullptr;
        PyBuffer_Release(&table->held[i * HELD]);
    }
}

// The gradient and the inverse of each parameter.
bool load(Table *table, PyObject *gradients, PyObject *inverses) {
    bool is_one = PyFloat_Check(inverses);
    if (!PyList_CheckExact(gradients) || !(is_one || PyList_CheckExact(inverses))) {
        PyErr_SetString(PyExc_TypeError, "gradients and inverses must be lists; inverses may be a float");
        return false;
    }
    for (long i = 0; i < table->count; ++i) {  // a number or an array may run code that makes the lists others
        if (PyList_Size(gradients) != table->count || !(is_one || PyList_Size(inverses) == table->count)) {
            PyErr_Format(PyExc_ValueError, "%ld gradients and inverses are needed", table->count);
            return false;
        }
        Updated &updated = table->work.updated[i];
        PyObject *number = is_one ? inverses : PyList_GetItem(inverses, i), *gradient = PyList_GetItem(gradients, i);
        Py_INCREF(number);
        Py_INCREF(gradient);
        double inverse = PyFloat_AsDouble(number);
        Py_buffer *held = &table->held[i * HELD];
        bool is_held = !(inverse == -1 && PyErr_Occurred()) &&
                       hold(gradient, held, updated.size, false, "feH", "gradient");
        Py_DECREF(number);
        Py_DECREF(gradient);
        if (!is_held) return false;
        updated.gradient = held->buf;
        updated.gradient_dtype = dtype_of(*held);
        updated.inverse = float(inverse);
    }
    table->has_gradients = true;
    return true;
}

PyObject *update_load(PyObject *, PyObject *const *given, Py_ssize_t count) {
    if (count != 3) return PyErr_Format(PyExc_TypeError, "update_load takes 3 arguments");
    Table *table = table_of(given[0]);
    if (!table) return nullptr;
    table->is_busy = true;
    forget(table);
    bool is_loaded = given[1] == Py_None || load(table, given[1], given[2]);
    if (!is_loaded) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        forget(table);
        PyErr_Restore(type, value, trace);
    }
    table->is_busy = false;
    if (!is_loaded) return nullptr;
    Py_RETURN_NONE;
}

bool take_numbers(PyObject *object, int count, float *numbers) {
    if (!PyTuple_Check(object) || PyTuple_Size(object) != count || count > MOST_NUMBERS) {
        PyErr_Format(PyExc_ValueError, "a formula wants a tuple of %d numbers", count);
        return false;
    }
    for (int i = 0; i < count; ++i) {
        double number = PyFloat_AsDouble(PyTuple_GetItem(object, i));
        if (number == -1 && PyErr_Occurred()) return false;
        numbers[i] = float(number);
    }
    return true;
}

bool take_hook_numbers(const Work &work, PyObject *object, float (*numbers)[MOST_NUMBERS]) {
    if (!PyTuple_Check(object) || PyTuple_Size(object) != work.hook_count) {
        PyErr_Format(PyExc_ValueError, "there are %d hooks", work.hook_count);
        return false;
    }
    for (int i = 0; i < work.hook_count; ++i)
        if (!take_numbers(PyTuple_GetItem(object, i), HOOK_NAMES[work.hooks[i]].numbers, numbers[i])) return false;
    return true;
}

PyObject *update_check(PyObject *, PyObject *const *given, Py_ssize_t count) {
    if (count != 2) return PyErr_Format(PyExc_TypeError, "update_check takes 2 arguments");
    float hook_numbers[MOST_HOOKS][MOST_NUMBERS];
    Table *table = table_of(given[0]);
    if (!table || !take_hook_numbers(table->work, given[1], hook_numbers)) return nullptr;
    if (!(table = table_of(given[0]))) return nullptr;  // a number's own code may have begun a call
    table->is_busy = true;
    int found;
    Py_BEGIN_ALLOW_THREADS;
    found = kernels->update.check(table->work, hook_numbers);
    Py_END_ALLOW_THREADS;
    table->is_busy = false;
    return PyLong_FromLong(found);
}

PyObject *update_run(PyObject *, PyObject *const *given, Py_ssize_t count) {
    if (count != 3) return PyErr_Format(PyExc_TypeError, "update_run takes 3 arguments");
    float hook_numbers[MOST_HOOKS][MOST_NUMBERS], numbers[MOST_NUMBERS];
    Table *table = table_of(given[0]);
    if (!table || !take_hook_numbers(table->work, given[1], hook_numbers)) return nullptr;
    int rule = table->work.rule;
    if (rule < 0) return PyErr_Format(PyExc_ValueError, "the table has no rule");
    if (!take_numbers(given[2], RULE_NAMES[rule].numbers, numbers) || !(table = table_of(given[0]))) return nullptr;
    if (!table->has_gradients) return PyErr_Format(PyExc_ValueError, "there are no gradients");
    table->is_busy = true;
    Py_BEGIN_ALLOW_THREADS;
    kernels->update.update(table->work, hook_numbers, numbers);
    Py_END_ALLOW_THREADS;
    table->is_busy = false;
    Py_RETURN_NONE;
}

}  // namespace

PyMethodDef update_methods[] = {
    {"update_table", METHOD(update_table), METH_FASTCALL,
     "update_table(rule, hooks, entries): a table of (rounded or None, master, state, ...), flat arrays."},
    {"update_load", METHOD(update_load), METH_FASTCALL,
     "update_load(table, gradients, inverses): takes lists, or lets gradients go for None."},
    {"update_check", METHOD(update_check), METH_FASTCALL,
     "update_check(table, hook_numbers): 1 if gradients are finite, plus 2 if they are after hooks."},
    {"update_run", METHOD(update_run), METH_FASTCALL, "update_run(table, hook_numbers, numbers)"},
    {},
};

}  // namespace native
