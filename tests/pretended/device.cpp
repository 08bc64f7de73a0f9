// The part of the pretended device that Python cannot be: tensors whose device is not their memory's, and what torch
// asks of a device before it runs anything. Operators are in Python (operators.py).
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kType, 0);

/// A tensor over the memory of another tensor that says it is on `device`. Where its memory is does not change.
struct Alias final : c10::TensorImpl {
  Alias(const at::Tensor& other, c10::Device device)
      : TensorImpl(VIEW, c10::Storage(other.storage()), other.key_set(), other.dtype()) {
    _change_backend_component_keys(device);
    device_opt_ = device;
    set_sizes_and_strides(other.sizes(), other.strides(), other.storage_offset());
  }
};

at::Tensor on_device(const at::Tensor& host) {
  return at::detail::make_tensor<Alias>(host, kDevice);
}

at::Tensor on_host(const at::Tensor& tensor) {
  return at::detail::make_tensor<Alias>(tensor, c10::Device(c10::kCPU));
}

/// Whether an operator that ran on `host` left `tensor` with another shape or other memory.
bool differs(const at::Tensor& tensor, const at::Tensor& host) {
  return tensor.sizes() != host.sizes() || tensor.strides() != host.strides() ||
      tensor.storage_offset() != host.storage_offset() || !tensor.is_alias_of(host);
}

/// Give `tensor` the shape and the memory of `host`.
void become(at::Tensor tensor, const at::Tensor& host) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(c10::make_intrusive<Alias>(host, kDevice));
}

/// One device, one stream. Events are always done, because nothing is asynchronous.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<kType> {
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return getStream(kDevice); }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    *event = const_cast<Guard*>(this); // any address that is not null
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

const bool is_registered = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

} // namespace

/// Not in Python: a tensor that comes from there cannot become a parameter.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("detach", TORCH_FN(on_device));
}

TORCH_LIBRARY(pretended, library) {
  const auto add = [&](const char* schema, const char* name, auto function) {
    library.def(schema);
    library.impl(name, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, function));
    library.impl(
        name, torch::dispatch(c10::DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
  };
  add("on_device(Tensor host) -> Tensor", "on_device", TORCH_FN(on_device));
  add("on_host(Tensor tensor) -> Tensor", "on_host", TORCH_FN(on_host));
  add("differs(Tensor tensor, Tensor host) -> bool", "differs", TORCH_FN(differs));
  add("become(Tensor tensor, Tensor host) -> ()", "become", TORCH_FN(become));
}
