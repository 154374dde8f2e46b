// Runs torch's own caching allocator through the requests on standard input.
//
//   m ID BYTES STREAM   allocate        f ID          free
//   r ID STREAM         record_stream   c             complete all recorded events
//   e                   empty_cache     b A B / q A B / x A B   begin, end, release pool (A, B)
//   s TEXT              settings        F FRACTION    memory fraction
//   h ENTRIES           record history  p             reset peaks
//   d                   dump, as JSON in one line
//
// After each allocation its address is printed, or "oom" and torch's message.
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <iostream>
#include <map>
#include <sstream>

extern "C" void fake_complete_events();
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*func)(DeviceIndex)); // exported, in no header
}
namespace cca = c10::cuda::CUDACachingAllocator;

static std::shared_ptr<c10::GatheredContext> no_context() { return nullptr; }

static const char* names[] = {
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
    "segment_map", "segment_unmap", "snapshot", "oom"};

static void stat(const char* name, const c10::CachingAllocator::Stat& s) {
  std::cout << '"' << name << "\":{\"current\":" << s.current << ",\"peak\":" << s.peak
            << ",\"allocated\":" << s.allocated << ",\"freed\":" << s.freed << "}";
}

static void stats(const char* name, const c10::CachingAllocator::StatArray& a) {
  std::cout << '"' << name << "\":{";
  stat("all", a[0]);
  std::cout << ',';
  stat("small_pool", a[1]);
  std::cout << ',';
  stat("large_pool", a[2]);
  std::cout << "},";
}

static void dump() {
  auto shot = cca::get()->snapshot();
  std::cout << "{\"segments\":[";
  const char* comma = "";
  for (auto& s : shot.segments) {
    std::cout << comma << "{\"device\":" << int(s.device) << ",\"address\":" << s.address
              << ",\"total_size\":" << s.total_size << ",\"allocated_size\":" << s.allocated_size
              << ",\"active_size\":" << s.active_size
              << ",\"requested_size\":" << s.requested_size << ",\"stream\":" << (uint64_t)s.stream
              << ",\"segment_type\":\"" << (s.is_large ? "large" : "small")
              << "\",\"segment_pool_id\":[" << s.owner_private_pool_id.first << ','
              << s.owner_private_pool_id.second << "],\"is_expandable\":"
              << (s.is_expandable ? "true" : "false") << ",\"frames\":[],\"blocks\":[";
    comma = "";
    uint64_t at = s.address;
    for (auto& b : s.blocks) {
      std::cout << comma << "{\"address\":" << at << ",\"size\":" << b.size
                << ",\"requested_size\":" << b.requested_size << ",\"state\":\""
                << (b.allocated ? "active_allocated" : b.active ? "active_pending_free" : "inactive")
                << "\",\"frames\":[]}";
      at += b.size;
      comma = ",";
    }
    std::cout << "]}";
    comma = ",";
  }
  std::cout << "],\"device_traces\":[[";
  comma = "";
  for (auto& e : shot.device_traces.at(0)) {
    std::cout << comma << "{\"action\":\"" << names[int(e.action_)] << "\",\""
              << (int(e.action_) == 8 ? "device_free" : "addr") << "\":" << e.addr_
              << ",\"size\":" << e.size_ << ",\"stream\":" << (uint64_t)e.stream_
              << ",\"time_us\":0,\"compile_context\":\"N/A\",\"user_metadata\":\"\"}";
    comma = ",";
  }
  auto& c = shot.config_metadata;
  std::cout << "]],\"allocator_settings\":{\"PYTORCH_CUDA_ALLOC_CONF\":\""
            << c.last_allocator_settings << "\",\"max_split_size\":" << (int64_t)c.max_split_size
            << ",\"garbage_collection_threshold\":" << c.garbage_collection_threshold
            << ",\"expandable_segments\":" << (c.expandable_segments ? "true" : "false")
            << ",\"roundup_power2_divisions\":{";
  comma = "";
  uint64_t key = 1;
  for (auto v : c.roundup_power2_divisions) {
    std::cout << comma << '"' << key << "\":" << v;
    key *= 2;
    comma = ",";
  }
  auto s = cca::getDeviceStats(0);
  std::cout << "}},\"external_annotations\":[],\"stats\":{";
  stats("allocation", s.allocation);
  stats("segment", s.segment);
  stats("active", s.active);
  stats("inactive_split", s.inactive_split);
  stats("allocated_bytes", s.allocated_bytes);
  stats("reserved_bytes", s.reserved_bytes);
  stats("active_bytes", s.active_bytes);
  stats("inactive_split_bytes", s.inactive_split_bytes);
  stats("requested_bytes", s.requested_bytes);
  stat("oversize_allocations", s.oversize_allocations);
  std::cout << ',';
  stat("oversize_segments", s.oversize_segments);
  std::cout << ",\"num_alloc_retries\":" << s.num_alloc_retries << ",\"num_ooms\":" << s.num_ooms
            << ",\"num_sync_all_streams\":" << s.num_sync_all_streams
            << ",\"num_device_alloc\":" << s.num_device_alloc
            << ",\"num_device_free\":" << s.num_device_free
            << ",\"max_split_size\":" << s.max_split_size << "}}" << std::endl;
}

int main() {
  auto* allocator = cca::get();
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  c10::cuda::detail::init_p2p_access_cache(1);
  // Without NVML there is no fabric to ask about.
  cca::CUDAAllocatorConfig::set_expandable_segments_handle_type(
      cca::Expandable_Segments_Handle_Type::POSIX_FD);
  allocator->init(1);
  std::map<int, c10::DataPtr> live;
  std::map<int, c10::cuda::CUDAStream> streams;
  auto stream = [&](int n) {
    if (n == 0) return c10::cuda::getDefaultCUDAStream(0);
    auto it = streams.find(n);
    if (it == streams.end()) it = streams.emplace(n, c10::cuda::getStreamFromPool(false, 0)).first;
    return it->second;
  };
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    std::string verb;
    in >> verb;
    uint64_t a = 0, b = 0, c = 0;
    if (verb == "m") {
      in >> a >> b >> c;
      c10::cuda::setCurrentCUDAStream(stream(c));
      try {
        live[a] = allocator->allocate(b);
        std::cout << (uint64_t)live[a].get() << ' ' << (uint64_t)stream(c).stream() << '\n';
      } catch (const c10::OutOfMemoryError& error) {
        std::cout << "oom " << error.what_without_backtrace() << '\n';
      }
    } else if (verb == "f") {
      in >> a;
      live.erase(a);
    } else if (verb == "r") {
      in >> a >> b;
      allocator->recordStream(live[a], stream(b));
    } else if (verb == "c") {
      fake_complete_events();
    } else if (verb == "e") {
      allocator->emptyCache();
    } else if (verb == "b") {
      in >> a >> b;
      allocator->beginAllocateToPool(0, {a, b}, [](cudaStream_t) { return true; });
    } else if (verb == "q") {
      in >> a >> b;
      allocator->endAllocateToPool(0, {a, b});
    } else if (verb == "x") {
      in >> a >> b;
      allocator->releasePool(0, {a, b});
    } else if (verb == "s") {
      std::string text;
      in >> text;
      c10::CachingAllocator::setAllocatorSettings(text == "-" ? "" : text);
    } else if (verb == "F") {
      double fraction;
      in >> fraction;
      allocator->setMemoryFraction(fraction, 0);
    } else if (verb == "h") {
      in >> a;
      allocator->recordHistory(
          true, no_context, a, c10::CachingDeviceAllocator::RecordContext::NEVER, true, {});
    } else if (verb == "p") {
      allocator->resetPeakStats(0);
    } else if (verb == "d") {
      dump();
    }
  }
  std::cout.flush();
  for (auto& entry : live) entry.second.release_context();
  _Exit(0);
}
