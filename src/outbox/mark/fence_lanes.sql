-- Locks lanes of this worker for a transaction of several statements, so that no other worker can take them meanwhile.
{lane_fence}
SELECT lane FROM own WHERE EXISTS (SELECT FROM timeout)
