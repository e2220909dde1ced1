// Which physical cores this process may use.
#pragma once

#include <string>
#include <vector>

namespace moesaic {

// One logical processor of each physical core that affinity allows, ascending; no more of them than the control
// group's quota pays for (rounded down, at least one). `root` stands for "/" in tests.
std::vector<int> usable_cores(const std::string& root = "");

// "0-3,8" -> {0, 1, 2, 3, 8}; what cannot be read is left out.
std::vector<int> parse_cpu_list(const std::string& text);

// Processors that the control groups of this process allow, v1 and v2, its own and all above; 0 means no limit.
double cgroup_cpus(const std::string& root);

}  // namespace moesaic
