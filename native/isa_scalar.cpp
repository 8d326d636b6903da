// The scalar kernels. CMakeLists.txt gives this unit its own instruction-set flags.
#include "vec_scalar.hpp"

namespace octavo::scalar {
#include "gemm_impl.hpp"
#include "rows_impl.hpp"
#include "attention_impl.hpp"
#include "table_impl.hpp"
}  // namespace octavo::scalar

namespace octavo {
using namespace octavo::scalar;
const Kernels kScalarKernels = OCTAVO_KERNELS("scalar");
}  // namespace octavo
