#include <nanobind/nanobind.h>

NB_MODULE(_native, m) { m.attr("kernel_revision") = 1; }
