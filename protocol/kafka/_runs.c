/* `follow` and `usual` of runs.py, in C. What they do, and why, is said there; tests/protocol/kafka/test_runs.py has both give the
 * same results for the same bytes.
 *
 * Every byte here comes from a client. So no length is used before it was compared with the bytes that are there, and positions
 * are 64 bits wide, into which sums of 32-bit numbers fit. Nothing is changed, and nothing is kept between two calls.
 *
 * Only Python's stable ABI (3.11) is used, so that one binary serves each later version.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* A frame begins with its length, its kind and the correlation id. The middle follows, and the first bytes of the length of the
 * records: a number, or, where the protocol is flexible, up to three bytes of one. */
enum { MIDDLE = 12, NUMBER = 4, COMPACT = 3 };
/* Of a batch: its header, where its checksum begins to count, and what its length excludes. */
enum { HEADER = 61, CRC_START = 21, LOG_OVERHEAD = 12, MAGIC = 2, SMALLEST_RECORD = 7 };
/* Its attributes. */
enum { CODEC = 7, LARGEST_CODEC = 4, TRANSACTIONAL = 16 };

static uint16_t u16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }
static uint32_t u32(const uint8_t *at) { return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]; }
static int32_t i32(const uint8_t *at) { return (int32_t)u32(at); }
static int64_t i64(const uint8_t *at) { return (int64_t)((uint64_t)u32(at) << 32 | u32(at + 4)); }

/* Append a new reference, which is taken over; NULL is an error that was raised before. */
static bool add(PyObject *list, PyObject *item) {
    bool added = item && !PyList_Append(list, item);
    Py_XDECREF(item);
    return added;
}

static PyObject *slice(PyObject *view, PyObject *start, PyObject *end) {
    PyObject *range = start && (end || !PyErr_Occurred()) ? PySlice_New(start, end, NULL) : NULL;
    PyObject *part = range ? PyObject_GetItem(view, range) : NULL;
    Py_XDECREF(range);
    Py_XDECREF(start);
    Py_XDECREF(end);
    return part;
}

/* Where the records lie that end with the request at `end`; 0: they do not. `at` is behind the first bytes of their length. */
static int64_t records_start(const uint8_t *data, int64_t at, int64_t end, bool is_flexible) {
    if (!is_flexible) {
        int64_t count = i32(data + at - NUMBER);
        return count > 0 && at + count == end ? at : 0;
    }
    const uint8_t *size = data + at - COMPACT;
    int64_t after = end - 3, count; /* three empty tag sections */
    if (size[0] < 128) {
        count = size[0];
        at -= 2;
    } else if (size[1] < 128) {
        count = (size[0] & 127) + ((int64_t)size[1] << 7);
        at -= 1;
    } else if (size[2] < 128) {
        count = (size[0] & 127) + ((int64_t)(size[1] & 127) << 7) + ((int64_t)size[2] << 14);
    } else {
        return 0;
    }
    count -= 1;
    if (count <= 0 || at + count != after || data[after] | data[after + 1] | data[after + 2]) return 0;
    return at;
}

/* What is known of the request at `frame`, whose first `size` bytes a layout has: a `Known`, borrowed. NULL: nothing, or an error. */
static PyObject *look_up(PyObject *by_middle, const uint8_t *frame, int64_t size) {
    PyObject *middle = PyBytes_FromStringAndSize((const char *)frame + MIDDLE, (Py_ssize_t)size);
    PyObject *known = middle ? PyDict_GetItemWithError(by_middle, middle) : NULL;
    Py_XDECREF(middle);
    return known;
}

/* The size of the layout for this byte; 0: there is none, or an error. */
static int64_t layout_size(PyObject *layouts, uint8_t byte) {
    PyObject *key = PyLong_FromLong(byte);
    PyObject *layout = key ? PyDict_GetItemWithError(layouts, key) : NULL;
    Py_XDECREF(key);
    return layout ? PyLong_AsSsize_t(PyTuple_GetItem(layout, 1)) : 0;
}

/* Follow the requests, and add to the three lists. The end of the last one; -1: an error. */
static int64_t follow_all(PyObject *by_middle, PyObject *layouts, int64_t tells_layout, bool is_flexible, PyObject *view,
                          const uint8_t *data, int64_t limit, int64_t most, PyObject *templates, PyObject *ids, PyObject *records,
                          bool *is_uniform) {
    int64_t position = 0, its_size = 0, middle_size = 0;
    const uint8_t *middle = NULL;
    PyObject *known = NULL, *settings = NULL;
    long kind = 0;
    for (int64_t number = 0; number < most && position + tells_layout < limit; number++) {
        const uint8_t *frame = data + position;
        int64_t size = layout_size(layouts, frame[tells_layout]), start = position + size;
        if (size <= 0 || start > limit) break;
        its_size = size - MIDDLE - (is_flexible ? COMPACT : NUMBER);
        if (!known || its_size != middle_size || memcmp(frame + MIDDLE, middle, (size_t)its_size)) {
            known = look_up(by_middle, frame, its_size);
            if (!known) break;
            middle = frame + MIDDLE, middle_size = its_size;
            long its_kind = PyLong_AsLong(PyTuple_GetItem(known, 1));
            PyObject *its_settings = PyTuple_GetItem(known, 2);
            if (!number) {
                kind = its_kind, settings = its_settings;
            } else {
                int is_same = its_kind == kind ? PyObject_RichCompareBool(settings, its_settings, Py_EQ) : 0;
                if (is_same <= 0) break;
                *is_uniform = false;
            }
        }
        int64_t end = position + 4 + i32(frame);
        if (i32(frame + 4) != kind || end > limit || end < start) break;
        start = records_start(data, start, end, is_flexible);
        if (!start) break;
        PyObject *from = PyLong_FromLongLong(start), *to = PyLong_FromLongLong(is_flexible ? end - 3 : end);
        if (!add(templates, Py_NewRef(PyTuple_GetItem(known, 0))) || !add(ids, PyLong_FromLong(i32(frame + 8))) ||
            !add(records, slice(view, from, to)))
            break;
        position = end;
    }
    return PyErr_Occurred() ? -1 : position;
}

static PyObject *follow(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 7) return PyErr_SetString(PyExc_TypeError, "follow takes 7 arguments"), NULL;
    long long tells_layout = PyLong_AsLongLong(args[2]), most = PyLong_AsLongLong(args[5]), limit = PyLong_AsLongLong(args[6]);
    int is_flexible = PyObject_IsTrue(args[3]);
    Py_buffer data;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[4], &data, PyBUF_SIMPLE)) return NULL;
    if (limit > data.len) limit = data.len;
    PyObject *templates = PyList_New(0), *ids = PyList_New(0), *records = PyList_New(0), *found = NULL;
    bool is_uniform = true;
    int64_t end = -1;
    if (templates && ids && records)
        end = follow_all(args[0], args[1], tells_layout, is_flexible, args[4], data.buf, limit, most, templates, ids, records,
                         &is_uniform);
    if (end == 0) found = Py_NewRef(Py_None);
    if (end > 0) found = Py_BuildValue("(OOOLO)", templates, ids, records, (long long)end, is_uniform ? Py_True : Py_False);
    Py_XDECREF(templates);
    Py_XDECREF(ids);
    Py_XDECREF(records);
    PyBuffer_Release(&data);
    return found;
}

/* Whether the lengths of `count` records lead exactly to the end. */
static bool is_shaped(const uint8_t *data, int64_t size, int64_t count) {
    int64_t at = 0;
    for (; count; count--) {
        uint64_t value = 0; /* in zig-zag, where odd numbers are negative */
        for (int shift = 0;; shift += 7) {
            if (at >= size || shift > 28) return false;
            uint8_t byte = data[at++];
            value |= (uint64_t)(byte & 127) << shift;
            if (byte < 128) break;
        }
        if (value & 1 || value > UINT32_MAX || (int64_t)(value >> 1) > size - at) return false;
        at += (int64_t)(value >> 1);
    }
    return at == size;
}

/* What the checksum function of Python says of the batch. -1: an error. */
static int has_checksum(PyObject *records, uint32_t crc, PyObject *crc32c) {
    PyObject *covered = slice(records, PyLong_FromLong(CRC_START), NULL);
    PyObject *sum = covered ? PyObject_CallFunctionObjArgs(crc32c, covered, NULL) : NULL;
    int is_same = sum ? PyLong_AsUnsignedLong(sum) == crc : -1;
    Py_XDECREF(covered);
    Py_XDECREF(sum);
    return PyErr_Occurred() ? -1 : is_same;
}

/* What Python says of the compressed records of the batch. -1: an error. */
static int is_compressed(PyObject *records, int codec, int32_t count, PyObject *check) {
    PyObject *answer = PyObject_CallFunction(check, "Oii", records, codec, count);
    int is_good = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return is_good;
}

/* The number, or the end of the range of 64 bits that is nearest to it: a topic may allow any time. */
static int64_t clamped(PyObject *number) {
    int beyond;
    int64_t value = PyLong_AsLongLongAndOverflow(number, &beyond);
    return beyond ? beyond > 0 ? INT64_MAX : INT64_MIN : value;
}

struct checks {
    int64_t earliest, latest, max_batch;
    PyObject *crc32c, *is_compressed;
};

struct totals {
    int64_t size, newest;
    bool is_numbered;
};

/* Add a batch to `taken` if it is usual: 1; 0: it is not; -1: an error. */
static int take(PyObject *records, const uint8_t *data, int64_t size, const struct checks *checks, PyObject *taken,
                struct totals *totals) {
    if (size < HEADER || size > checks->max_batch) return 0;
    int32_t length = i32(data + 8), last_delta = i32(data + 23), sequence = i32(data + 53), count = i32(data + 57);
    int magic = (int8_t)data[16], attributes = (int16_t)u16(data + 21), epoch = (int16_t)u16(data + 51);
    int64_t base_time = i64(data + 27), max_time = i64(data + 35), producer = i64(data + 43);
    uint32_t crc = u32(data + 17);
    int codec = attributes & CODEC;
    if ((int64_t)length + LOG_OVERHEAD != size || magic != MAGIC || attributes & ~(CODEC | TRANSACTIONAL) || codec > LARGEST_CODEC)
        return 0;
    /* As many records as fit without compression. */
    if (count <= 0 || last_delta != count - 1 || (int64_t)count * SMALLEST_RECORD > size - HEADER) return 0;
    if (base_time < checks->earliest || base_time > checks->latest || max_time < checks->earliest || max_time > checks->latest)
        return 0;
    if (producer >= 0 ? sequence < 0 || epoch < 0 : attributes & TRANSACTIONAL) return 0;
    int is_good = has_checksum(records, crc, checks->crc32c);
    if (is_good > 0)
        is_good = codec ? is_compressed(records, codec, count, checks->is_compressed) : is_shaped(data + HEADER, size - HEADER, count);
    if (is_good <= 0) return is_good;
    if (!add(taken, Py_BuildValue("(L(LiiiIiiLLLiii))", (long long)totals->size, (long long)i64(data), length, i32(data + 12), magic,
                                  crc, attributes, last_delta, (long long)base_time, (long long)max_time, (long long)producer, epoch,
                                  sequence, count)))
        return -1;
    totals->size += size;
    if (max_time > totals->newest) totals->newest = max_time;
    totals->is_numbered |= producer >= 0;
    return 1;
}

static PyObject *usual(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 6) return PyErr_SetString(PyExc_TypeError, "usual takes 6 arguments"), NULL;
    struct checks checks = {clamped(args[3]), clamped(args[4]), clamped(args[5]), args[0], args[1]};
    struct totals totals = {0, -1, false};
    PyObject *run = args[2];
    Py_ssize_t batches = PySequence_Size(run);
    PyObject *taken = PyErr_Occurred() ? NULL : PyList_New(0);
    int goes_on = taken ? 1 : -1;
    for (Py_ssize_t number = 0; goes_on > 0 && number < batches; number++) {
        PyObject *records = PySequence_GetItem(run, number);
        Py_buffer data;
        goes_on = -1;
        if (records && !PyObject_GetBuffer(records, &data, PyBUF_SIMPLE)) {
            goes_on = take(records, data.buf, data.len, &checks, taken, &totals);
            PyBuffer_Release(&data);
        }
        Py_XDECREF(records);
    }
    PyObject *result = NULL;
    if (goes_on >= 0)
        result = Py_BuildValue("(OLLO)", taken, (long long)totals.size, (long long)totals.newest, totals.is_numbered ? Py_True : Py_False);
    Py_XDECREF(taken);
    return result;
}

static PyMethodDef methods[] = {
    {"follow", (PyCFunction)(void (*)(void))follow, METH_FASTCALL, NULL},
    {"usual", (PyCFunction)(void (*)(void))usual, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_runs", .m_methods = methods};

PyMODINIT_FUNC PyInit__runs(void) { return PyModuleDef_Init(&definition); }
