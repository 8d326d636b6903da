// Python access to the sampler alone, for its tests.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

// Adds `sample_row` to the module.
void register_sampler(nanobind::module_& module);

}  // namespace octavo
