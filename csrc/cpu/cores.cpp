// Reads affinity, /sys topology and control groups.
//
// By C's files and strings alone: torch's libraries export pieces of an older C++ runtime, and a stream object that is
// made by one runtime and read by the other crashes (seen under torch 2.11 on CUDA).
#include "cores.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace moesaic {
namespace {

std::vector<std::string> lines(const std::string& path) {
  std::vector<std::string> found;
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) {
    return found;
  }
  char* line = nullptr;
  size_t size = 0;
  for (ssize_t length = 0; (length = getline(&line, &size, file)) >= 0;) {
    found.emplace_back(line, static_cast<size_t>(length));
    while (!found.back().empty() && found.back().back() == '\n') {
      found.back().pop_back();
    }
  }
  std::free(line);
  std::fclose(file);
  return found;
}

std::string first_line(const std::string& path) {
  const std::vector<std::string> all = lines(path);
  return all.empty() ? std::string() : all.front();
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// The number that `text` begins with; 0 where it begins with none ("max").
double number(const std::string& text) { return std::strtod(text.c_str(), nullptr); }

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  for (int size = 1024; size <= 1 << 20; size *= 2) {  // the kernel refuses a set smaller than its own
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(size));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    CPU_ZERO_S(bytes, set);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; known && cpu < size; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) {
        cpus.push_back(cpu);
      }
    }
    CPU_FREE(set);
    if (known) {
      break;
    }
  }
  if (cpus.empty()) {
    const int count = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    for (int cpu = 0; cpu < count; ++cpu) {
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

// quota / period of one group; 0 where it has none.
double group_limit(const std::string& folder) {
  const std::vector<std::string> v2 = split(first_line(folder + "/cpu.max"), ' ');
  if (v2.size() >= 2 && number(v2[0]) > 0 && number(v2[1]) > 0) {  // "max 100000" sets no limit
    return number(v2[0]) / number(v2[1]);
  }
  const double quota = number(first_line(folder + "/cpu.cfs_quota_us"));
  const double period = number(first_line(folder + "/cpu.cfs_period_us"));
  return quota > 0 && period > 0 ? quota / period : 0;
}

void take_lower(double& limit, double other) {
  if (other > 0 && (limit == 0 || other < limit)) {
    limit = other;
  }
}

bool lists_cpu(const std::string& controllers) {
  const std::vector<std::string> words = split(controllers, ',');
  return controllers.empty() || std::find(words.begin(), words.end(), "cpu") != words.end();  // v2: "0::/path"
}

}  // namespace

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  for (const std::string& part : split(text, ',')) {
    char* end = nullptr;
    const long first = std::strtol(part.c_str(), &end, 10);
    if (end == part.c_str()) {
      continue;
    }
    const long last = *end == '-' ? std::strtol(end + 1, nullptr, 10) : first;
    for (long cpu = first; cpu <= last && cpu < 1 << 20; ++cpu) {
      cpus.push_back(static_cast<int>(cpu));
    }
  }
  return cpus;
}

double cgroup_cpus(const std::string& root) {
  double limit = 0;
  for (const std::string& line : lines(root + "/proc/self/cgroup")) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos ||
        !lists_cpu(line.substr(first + 1, second - first - 1))) {
      continue;
    }
    // In a container the path may be the host's; walking up from it always ends at what is mounted here.
    std::string path = line.substr(second + 1);
    while (true) {
      for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"}) {
        take_lower(limit, group_limit(root + mount + path));
      }
      if (path.empty() || path == "/") {
        break;
      }
      const size_t slash = path.rfind('/');
      path.erase(slash == std::string::npos ? 0 : slash);
    }
  }
  return limit;
}

std::vector<int> usable_cores(const std::string& root) {
  std::vector<int> cores;
  for (const int cpu : allowed_cpus()) {
    const std::string topology = root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    const std::vector<int> siblings = parse_cpu_list(first_line(topology + "thread_siblings_list"));
    const bool taken = std::any_of(siblings.begin(), siblings.end(), [&](int sibling) {
      return std::find(cores.begin(), cores.end(), sibling) != cores.end();
    });
    if (!taken) {
      cores.push_back(cpu);
    }
  }
  const double limit = cgroup_cpus(root);
  if (limit > 0) {
    cores.resize(std::min(cores.size(), static_cast<size_t>(std::max(1.0, limit))));
  }
  return cores;
}

}  // namespace moesaic
